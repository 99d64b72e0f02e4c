"""The ops family by the command line: the self-test's verdicts, a broken table, an op that does not exist."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amp_checks import backends, cli
from amp_checks.core import Result, Status, SuiteError
from amp_checks.families import FAMILIES, checks_for
from amp_checks.families.ops import sweep
from amp_checks.families.ops.cases import OVERLOADS, RegistrationCase
from amp_checks.families.ops.mutants import faults
from amp_checks.families.ops.rows import OpCase, x
from amp_checks.records import cast_policy, fixtures
from amp_checks.suite import planting
from amp_checks.suite.measure import measure
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

SELFTEST = ["selftest", "--family", "ops", "--backend", "cpu-bfloat16"]


def mutant(name: str, plant: Callable[[Backend], contextlib.AbstractContextManager[Backend]]) -> Mutant:
    return Mutant(
        id=name,
        family="ops",
        fault=f"{name}, for the test",
        plant=plant,
        case="mm",
        killed_by=("check_output_dtype",),
    )


@contextlib.contextmanager
def inert(backend: Backend) -> Iterator[Backend]:
    """A fault that changes nothing: no check can catch it."""
    yield backend


CAUGHT = mutant("mm not cast", faults.with_rule("mm", faults.removed))
SURVIVOR = mutant("nothing at all", inert)


@pytest.mark.parametrize(("mutants", "status"), [((CAUGHT,), 0), ((CAUGHT, SURVIVOR), 1)])
def test_an_unexplained_survivor_fails_the_self_test(
    mutants: tuple[Mutant, ...],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(FAMILIES, "ops", dataclasses.replace(FAMILIES["ops"], mutants=mutants, bulk=()))
    file = tmp_path / "selftest.json"
    assert cli.entry([*SELFTEST, "--json", str(file)]) == status
    told = capfd.readouterr().out
    survived = "nothing at all on cpu-bfloat16 (missed by check_output_dtype)"
    assert (f"SURVIVED ops: {survived}" in told) is bool(status)
    document = json.loads(file.read_text())
    (tally,) = document["tallies"]
    assert (document["schema"], document["backends"]) == ("amp_checks/selftest", ["cpu-bfloat16"])
    assert (tally["total"], tally["by_running"], tally["survived"]) == (len(mutants), 1, [survived] * status)


def test_a_self_test_that_plants_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nowhere = (dataclasses.replace(CAUGHT, applies=lambda _: False),)
    monkeypatch.setitem(FAMILIES, "ops", dataclasses.replace(FAMILIES["ops"], mutants=nowhere, bulk=()))
    assert cli.entry(SELFTEST) == 3
    assert "no fault was planted" in capfd.readouterr().err


def test_the_mutants_of_the_test_are_tried_on_a_case_there_is() -> None:
    assert planting.case_of(CAUGHT) is OVERLOADS["mm"]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the recorded tables, which the package reads in place of its own."""
    folder = tmp_path / "cast_policy"
    shutil.copytree(fixtures.fixture("cast_policy"), folder)
    found = fixtures.fixture

    def clear() -> None:
        for cached in (cast_policy.recorded, cast_policy.declared):
            cached.cache_clear()

    monkeypatch.setattr(fixtures, "fixture", lambda name: folder if name == "cast_policy" else found(name))
    clear()
    yield folder
    monkeypatch.undo()
    clear()


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    for path in folder.glob("*.json"):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))


def test_a_malformed_table_is_one_line_and_status_3(tables: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit(tables, lambda document: document["policy"]["cpu"].update(fp16=["exp"]))
    assert cli.entry(["policy", "--backend", "cpu-bfloat16"]) == 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("amp-checks: error: ")
    assert "cpu: unknown policy 'fp16'" in line
    assert "torch-" in line


def measured(rows: list[Any]) -> list[Result]:
    backend = backends.backend("cpu-bfloat16")
    return [measure(check, row, backend) for row in rows for check in checks_for(row)]


def test_a_recorded_rule_of_an_unknown_op_is_named_and_the_rest_runs(tables: Path) -> None:
    edit(tables, lambda document: document["policy"]["cpu"]["fp32"].append("nonesuch"))
    results = measured([RegistrationCase(), OVERLOADS["mm"]])
    (result,) = [result for result in results if result.status is not Status.PASSED]
    assert [finding.subject for finding in result.failures] == ["number of rules", "rule of nonesuch"]
    assert len(results) > 5


def test_a_row_that_raises_is_named_and_the_rest_runs() -> None:
    broken = OpCase(id="mm", args=(x(2, 3), x(2, 3)))
    results = measured([broken, OVERLOADS["linear"]])
    assert {result.status for result in results if result.case == "linear"} == {Status.PASSED}
    told = [result.message for result in results if result.case == "mm"]
    assert any("the row of mm does not run with explicit casts" in message for message in told)


def test_a_sweep_refuses_an_op_that_the_database_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    database = types.SimpleNamespace(op_db=[])
    monkeypatch.setitem(sys.modules, "torch.testing._internal.common_methods_invocations", database)
    with pytest.raises(SuiteError, match="has no op 'nonesuch'"):
        list(sweep.sweep(backends.backend("cpu-bfloat16"), ("nonesuch",)))
