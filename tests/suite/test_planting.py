"""The planted-fault rule: every check has a fault that it catches, every mutant is caught by exactly those it names."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from amp_checks import backends, families
from amp_checks.core import Result, Status, exact
from amp_checks.records import known_defects
from amp_checks.suite import planting
from amp_checks.suite.measure import measure
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

BACKENDS = [backends.backend(name) for name in ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16")]


def first_backend(mutant: Mutant) -> Backend:
    """The cheapest backend of those tested here on which the mutant exists."""
    return next(b for b in BACKENDS if mutant.applies(b) and planting.case_of(mutant).runs_on(b))


MUTANTS = [mutant for family in planting.families() for mutant in planting.mutants(family)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_exactly_the_checks_that_a_mutant_names_catch_it(mutant: Mutant) -> None:
    backend = first_backend(mutant)
    caught = {name: planting.caught(mutant, result) for name, result in planting.killers(mutant, backend).items()}
    assert {name for name, is_caught in caught.items() if is_caught} == set(mutant.killed_by), (
        f"planted: {mutant.fault}, on {backend.id}"
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_without_its_fault_the_case_of_a_mutant_passes_those_checks(mutant: Mutant) -> None:

    backend = first_backend(mutant)
    for check in families.checks_for(planting.case_of(mutant)):
        if check.__name__ in mutant.killed_by:
            assert measure(check, planting.case_of(mutant), backend).status is Status.PASSED


def test_ids_are_unique() -> None:
    ids = [mutant.id for mutant in MUTANTS]
    assert len(ids) == len(set(ids))


def _checks(family: str) -> set[str]:
    """The checks of a family, but those whose every case is a known defect: torch itself trips them, strictly.

    And those that only start processes, in which nothing that is planted here is there.
    """
    pairs = [(check.__name__, case) for case in families.cases(family) for check in families.checks_for(case)]
    return {name for name, case in pairs if name not in IN_PROCESSES and not _is_known_defect(name, case)}


def _is_known_defect(check: str, case: Any) -> bool:
    return any(
        defect.names(check=check, case=case.id, backend=backend.id) and defect.in_range(torch.__version__)
        for defect in known_defects.registered()
        for backend in BACKENDS
    )


IN_PROCESSES = {"check_ddp_processes"}
"""Its program is planted with faults under threads, as check_ddp_inf's."""


@pytest.mark.parametrize("family", planting.families())
def test_every_check_has_a_mutant_that_it_kills(family: str) -> None:
    checks = _checks(family)
    killed = {name for mutant in planting.mutants(family) for name in mutant.killed_by}
    assert checks - killed == set()


SHARED: dict[str, str] = {
    "check_form_is_not_cast": "a form that is cast has the error of 16 bits as well, which check_form_error measures",
    "check_forced_fp32_gradient": "check_forced_fp32_in_other_ways differentiates the same remedy, written otherwise",
}
"""Checks without a mutant that they alone kill, each with the reason why there is none."""


@pytest.mark.parametrize("family", planting.families())
def test_every_check_has_a_mutant_that_it_alone_kills_or_a_reason(family: str) -> None:
    checks = _checks(family)
    alone = {mutant.killed_by[0] for mutant in planting.mutants(family) if len(mutant.killed_by) == 1}
    assert checks - alone == {name for name in SHARED if name in checks}


def result(status: Status, *, crash: bool = False) -> Result:
    from amp_checks.core import RAISED, Finding

    wrong = exact("dtype", actual="float32", expected="float16", why="rule")
    crashed = Finding(subject="forward", actual="RuntimeError", expected="none", ratio=9.0, threshold=1.0, why=RAISED)
    return Result(
        check="check",
        case="case",
        family="ops",
        backend="cpu-float16",
        emulated=False,
        status=status,
        findings=(crashed if crash else wrong,),
    )


def test_only_a_measured_failure_is_a_kill() -> None:
    mutant = MUTANTS[0]
    assert planting.caught(dataclasses.replace(mutant, crashes=False), result(Status.FAILED))
    assert not planting.caught(dataclasses.replace(mutant, crashes=False), result(Status.FAILED, crash=True))
    assert planting.caught(dataclasses.replace(mutant, crashes=True), result(Status.FAILED, crash=True))
    for status in (Status.PASSED, Status.ERROR, Status.NOT_EMULATED, Status.UNAVAILABLE, Status.KNOWN_DEFECT):
        assert not planting.caught(mutant, result(status))


def test_a_mutant_that_survives_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_checks.families.planted.cases import PlantedCase
    from amp_checks.families.planted.checks import check_planted_fault_is_caught

    @contextmanager
    def plant_nothing(backend: Backend) -> Iterator[Backend]:
        yield backend

    harmless = dataclasses.replace(MUTANTS[0], plant=plant_nothing)
    backend = first_backend(harmless)
    case = PlantedCase(mutant=harmless, backend_ids=frozenset({backend.id}))
    assert measure(check_planted_fault_is_caught, case, backend).status is Status.FAILED


def test_the_sample_is_the_same_each_time_and_touches_every_family() -> None:
    drawn = planting.sample(BACKENDS, families=planting.families())
    assert [(m.id, b.id) for m, b in drawn] == [
        (m.id, b.id) for m, b in planting.sample(BACKENDS, families=planting.families())
    ]
    assert len(drawn) == planting.SAMPLE
    families: dict[str, int] = defaultdict(int)
    for mutant, _ in drawn:
        families[mutant.family] += 1
    assert set(families) == set(planting.families())
