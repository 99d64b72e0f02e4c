"""The tables of the scaler family: complete, and honest about what torch does not keep."""

from __future__ import annotations

import inspect

import pytest
import torch

from amp_checks import known_defects, suite
from amp_checks.cases import scaler, scaler_calls, scaler_optimizers, scaler_programs
from amp_checks.cases.scaler_behaviours import BEHAVIOURS
from amp_checks.checks.scaler_stories import CHECKS
from amp_checks.mutants.scaler import MUTANTS
from amp_checks.scaler.oracle import AS_PROMISED, AS_RELEASED, expect


def test_every_behaviour_has_a_row() -> None:
    covered = {number for case in scaler.CASES for number in case.behaviours}  # type: ignore[attr-defined]
    assert covered == set(BEHAVIOURS) == set(range(1, 49))


def test_every_optimizer_of_torch_has_a_row_in_each_implementation() -> None:
    shipped = {
        name: found
        for name in dir(torch.optim)
        if isinstance(found := getattr(torch.optim, name), type)
        and issubclass(found, torch.optim.Optimizer)
        and found is not torch.optim.Optimizer
    }
    rows: dict[str, list[scaler_optimizers.OptimizerCase]] = {}
    for row in scaler_optimizers.ROWS:
        rows.setdefault(row.optimizer, []).append(row)
    # LBFGS needs a closure, which scalers refuse: it has a story of its own.
    assert set(rows) | {"LBFGS"} == set(shipped)
    assert "lbfgs" in CHECKS
    for name, found in shipped.items():
        for switch in ("foreach", "fused", "capturable", "differentiable"):
            if switch in inspect.signature(found).parameters:
                assert any((switch, True) in row.settings for row in rows[name]), (name, switch)


def test_every_story_has_a_check_and_every_check_a_story() -> None:
    assert set(CHECKS) == {row.story or row.id for row in scaler_calls.STORIES}


def test_every_check_has_a_mutant_that_it_alone_kills() -> None:
    checks = {check.__name__ for case in scaler.CASES for check in suite.checks_for(case)}
    alone = {mutant.killed_by[0] for mutant in MUTANTS if len(mutant.killed_by) == 1}
    assert checks - alone == set()


@pytest.mark.parametrize("case", scaler_programs.ROWS, ids=lambda case: case.id)
def test_oracle_departs_from_the_promise_exactly_where_a_known_defect_is_registered(
    case: scaler_programs.ProgramCase,
) -> None:
    departs = expect(case.program, AS_PROMISED) != expect(case.program, AS_RELEASED)
    assert departs == any(defect.case == case.id for defect in known_defects.registered())
