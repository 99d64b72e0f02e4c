"""The self-test: every planted fault against the checks that must catch it.

A family brings its table (`Family.mutants`, each tried on every chosen backend on which it exists) and may bring more
(`Family.bulk`), such as an edit of every node of a source file or the removal of every rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from amp_checks.suite import planting
from amp_checks.suite.family import FAMILIES, Progress, checks_for
from amp_checks.suite.planting import Tally
from amp_checks.torch_api.backend import Backend


def table(family: str, chosen: Sequence[Backend], progress: Progress) -> Tally:
    """Try each mutant of a family's table on each chosen backend on which it exists.

    It counts as caught when every check that it names catches it by running.
    """
    began = time.perf_counter()
    caught, survived, total = 0, [], 0
    for mutant in planting.mutants(family):
        case = planting.case_of(mutant)
        checks = [check for check in checks_for(case) if check.__name__ in mutant.killed_by]
        for backend in chosen:
            if not (mutant.applies(backend) and case.runs_on(backend)):
                continue
            total += 1
            missed = [c.__name__ for c in checks if not planting.caught(mutant, planting.try_on(mutant, backend, c))]
            if missed or not checks:
                survived.append(f"{mutant.id} on {backend.id} (missed by {', '.join(missed) or 'every check'})")
                progress(f"SURVIVED {survived[-1]}: {mutant.fault}")
            else:
                caught += 1
    return Tally(
        kind="table", total=total, by_running=caught, survived=tuple(survived), seconds=time.perf_counter() - began
    )


def run(families: Sequence[str], chosen: Sequence[Backend], progress: Progress) -> Iterator[tuple[str, Tally]]:
    """Every tally of the families, as each is ready."""
    for family in families:
        progress(f"{family}: {len(planting.mutants(family))} faults of its table")
        yield family, table(family, chosen, progress)
        for plant_all in FAMILIES[family].bulk:
            for tally in plant_all(progress):
                yield family, tally
