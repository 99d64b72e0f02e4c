"""The tables of the scaler family: complete, and honest about what torch does not keep."""

from __future__ import annotations

import inspect

import pytest
import torch

from amp_checks import families
from amp_checks.families.scaler import cases, coverage, programs, stories
from amp_checks.families.scaler.behaviours import BEHAVIOURS
from amp_checks.families.scaler.mutants.table import MUTANTS
from amp_checks.families.scaler.optimizers import cases as optimizers
from amp_checks.families.scaler.oracle.oracle import AS_PROMISED, AS_RELEASED, expect
from amp_checks.records import fixtures, known_defects


def test_every_behaviour_has_a_row() -> None:
    covered = {number for case in cases.CASES for number in case.behaviours}
    assert covered == set(BEHAVIOURS) == set(range(1, 49))


def test_every_optimizer_of_torch_has_a_row_in_each_implementation() -> None:
    shipped = {
        name: found
        for name in dir(torch.optim)
        if isinstance(found := getattr(torch.optim, name), type)
        and issubclass(found, torch.optim.Optimizer)
        and found is not torch.optim.Optimizer
    }
    rows: dict[str, list[optimizers.OptimizerCase]] = {}
    for row in optimizers.ROWS:
        rows.setdefault(row.optimizer, []).append(row)
    # LBFGS needs a closure, which scalers refuse: it is a story.
    assert set(rows) | {"LBFGS"} == set(shipped)
    assert "lbfgs" in {story.id for story in stories.ROWS}
    for name, found in shipped.items():
        for switch in ("foreach", "fused", "capturable", "differentiable"):
            if switch in inspect.signature(found).parameters:
                assert any((switch, True) in row.settings for row in rows[name]), (name, switch)


def test_every_check_of_a_story_has_a_row() -> None:
    """A check that no decorator makes a row of would never run."""
    modules = [module for module in vars(stories).values() if inspect.ismodule(module)]
    written = {check for module in modules for name, check in vars(module).items() if name.startswith("check_")}
    assert written == {story.check for story in stories.ROWS}
    assert len(written) > 25


def test_every_check_has_a_mutant_that_it_alone_kills() -> None:
    checks = {check.__name__ for case in cases.CASES for check in families.checks_for(case)}
    alone = {mutant.killed_by[0] for mutant in MUTANTS if len(mutant.killed_by) == 1}
    assert checks - alone == set()


@pytest.mark.parametrize("case", programs.ROWS, ids=lambda case: case.id)
def test_oracle_departs_from_the_promise_exactly_where_a_known_defect_is_registered(
    case: programs.ProgramCase,
) -> None:
    departs = expect(case.program, AS_PROMISED) != expect(case.program, AS_RELEASED)
    assert departs == any(defect.case == case.id for defect in known_defects.registered())


def test_documented_tables_are_the_printed_ones() -> None:
    text = (fixtures.fixture("scaler").parents[1] / "docs/scaler-behaviours.md").read_text(encoding="utf-8")
    for table in coverage.TABLES:
        printed = "\n".join(coverage.markdown(table()))
        assert printed in text, "run python -m amp_checks.families.scaler.coverage"


def test_tables_say_what_the_rows_cover() -> None:
    assert families.FAMILIES["scaler"].tables == coverage.TABLES
    shared = next(row for row in coverage.behaviours()["rows"] if row["name"].startswith("21 "))
    assert "shared-parameter" in shared["cases"]
    assert any("two optimizers share" in reason for reason in shared["defects"])
    fused = next(row for row in coverage.optimizers()["rows"] if row["name"] == "SGD, fused")
    assert fused["cases"] == ["optimizer-SGD-fused"]
    assert len(fused["defects"]) == 2
