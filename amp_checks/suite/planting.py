"""Planted faults: what a mutant is, what counts as catching it, and the sample that every run plants.

A mutant is caught by a check only if the check ran the thing and measured the difference: a failed finding. A crash of
the code under test counts only for a mutant that says ``crashes=True`` (its fault shows as an exception by nature); an
error of the suite, or an emulation's lack, never counts.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from amp_checks.core import RAISED, Case, Check, Finding, Result, Status, SuiteError, unknown
from amp_checks.suite.family import FAMILIES, cases, checks_for
from amp_checks.suite.measure import measure
from amp_checks.torch_api.backend import Backend

SAMPLE = 12
"""How many faults a run plants."""


def _anywhere(_: Backend) -> bool:
    return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A deliberately faulty backend, rule, scaler, kernel or training loop, and who must catch it.

    Attributes:
        id: unique over all families: ``autocast-ignored``, ``rule-removed-mm``.
        family: the family whose check must catch it.
        fault: what is broken, in one clause that completes "planted: ...".
        plant: enters the fault around a run; gives the backend to run with (unchanged where the fault lies elsewhere).
        case: id of the case to run under the fault.
        killed_by: names of ALL checks that fail on that case under the fault; more than one only where the fault breaks
            more than one property by nature.
        applies: the backends on which the fault exists.
        crashes: the fault shows as an exception of the code under test.
        full: planted by ``selftest`` only, never in the sample of a run (too slow for it).
    """

    id: str
    family: str
    fault: str
    plant: Callable[[Backend], AbstractContextManager[Backend]]
    case: str
    killed_by: tuple[str, ...]
    applies: Callable[[Backend], bool] = _anywhere
    crashes: bool = False
    full: bool = False


def families() -> list[str]:
    """The families that bring planted faults."""
    return [name for name, family in FAMILIES.items() if family.mutants]


def mutants(family: str) -> Sequence[Mutant]:
    """The planted faults of a family."""
    return FAMILIES[family].mutants


def mutant(name: str) -> Mutant:
    """The planted fault of that id.

    Raises:
        UsageError: there is none; names the nearest.
    """
    known = {found.id: found for family in FAMILIES for found in mutants(family)}
    if name not in known:
        raise unknown("planted fault", name, known, listed_by="amp-checks selftest --list")
    return known[name]


def case_of(mutant: Mutant) -> Case:
    """The case that a mutant is tried on."""
    for case in cases(mutant.family):
        if case.id == mutant.case:
            return case
    message = f"mutant {mutant.id!r} names the case {mutant.case!r}, which family {mutant.family!r} does not have"
    raise SuiteError(message)


def try_on(mutant: Mutant, backend: Backend, check: Check) -> Result:
    """Run one check on the mutant's case with the fault planted; the fault is gone afterwards."""
    with mutant.plant(backend) as faulty:
        return measure(check, case_of(mutant), faulty)


def caught(mutant: Mutant, result: Result) -> bool:
    """Whether that result catches the mutant (see the module's text for what counts)."""
    if result.status is not Status.FAILED:
        return False
    return mutant.crashes or any(not is_crash(finding) for finding in result.failures)


def is_crash(finding: Finding) -> bool:
    """Whether the finding stands for an exception of the code under test, not for a measurement."""
    return finding.why == RAISED


def killers(mutant: Mutant, backend: Backend) -> dict[str, Result]:
    """Every check that applies to the mutant's case, with its result under the fault."""
    return {check.__name__: try_on(mutant, backend, check) for check in checks_for(case_of(mutant))}


def sample(
    backends: Sequence[Backend], *, families: Sequence[str], count: int = SAMPLE, seed: int = 0
) -> list[tuple[Mutant, Backend]]:
    """A seeded choice of faults to plant, spread over families and backends, the same in every process."""
    chosen: list[tuple[Mutant, Backend]] = []
    for number, family in enumerate(families):
        share = (count - len(chosen)) // (len(families) - number)
        eligible = [
            (mutant, backend)
            for mutant in mutants(family)
            for backend in backends
            if not mutant.full and mutant.applies(backend) and case_of(mutant).runs_on(backend)
        ]
        chosen += random.Random(f"{seed} {family}").sample(eligible, min(share, len(eligible)))  # noqa: S311
    return chosen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of a set of planted faults of one kind.

    Attributes:
        kind: what they are: ``"table"``, ``"syntax-tree edits of grad_scaler.py"``, ``"rule removed, cuda, fp32"``.
        total: how many were planted.
        by_running: caught by a check that ran the thing.
        by_list: caught by a registration list alone; counted apart.
        survived: caught by nothing and not listed as equivalent; each fails the self-test.
        equivalent: caught by nothing, with the recorded reason why nothing can.
        entry_alone: of those caught by running, the ones that no check shows but that of the op's own entry.
        seconds: wall time.
    """

    kind: str
    total: int
    by_running: int
    by_list: int = 0
    survived: tuple[str, ...] = ()
    equivalent: tuple[tuple[str, str], ...] = ()
    entry_alone: tuple[str, ...] = ()
    seconds: float = 0.0
