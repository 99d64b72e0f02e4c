"""Every run proves on the spot that its checks can fail: a planted fault must be caught."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.core import Check, Finding, exact
from amp_checks.families.planted.cases import PlantedCase
from amp_checks.suite import planting
from amp_checks.suite.family import checks_for as checks_of
from amp_checks.torch_api.backend import Backend


def checks_for(_: PlantedCase) -> Iterator[Check]:
    yield check_planted_fault_is_caught


def check_planted_fault_is_caught(case: PlantedCase, backend: Backend) -> Iterator[Finding]:
    """Each check that must catch the mutant fails on its case, by a measurement, with the fault planted."""
    mutant = case.mutant
    for check in checks_of(planting.case_of(mutant)):
        if check.__name__ in mutant.killed_by:
            result = planting.try_on(mutant, backend, check)
            yield exact(
                f"{check.__name__} on {mutant.case} with the fault planted: {mutant.fault}",
                actual="caught" if planting.caught(mutant, result) else f"{result.status} {result.message}".strip(),
                expected="caught",
                why="a check that cannot fail proves nothing",
            )
