"""``amp-checks selftest``: every planted fault against the checks that must catch it.

A family brings its table (`Family.mutants`, each tried on every chosen backend on which it exists) and may bring more
(`Family.bulk`), such as an edit of every node of a source file or the removal of every rule.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_checks import backends
from amp_checks.core import Backend, SuiteError, UsageError
from amp_checks.report import files, values
from amp_checks.suite import planting
from amp_checks.suite.family import FAMILIES, Progress, checks_for
from amp_checks.suite.planting import Tally


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


def main(args: argparse.Namespace) -> int:
    """Print the tallies, or with ``--list`` the faults; 1 where a fault survived unexplained, else 0.

    Raises:
        UsageError: a family or backend is unknown, or a chosen backend cannot run here.
    """
    known = planting.families()
    if unknown := [name for name in args.family if name not in known]:
        raise UsageError(f"unknown family {unknown[0]!r}; there are {', '.join(known)}")
    families = [name for name in known if name in args.family] or known
    if args.list:
        sys.stdout.write("\n".join(_listed(families, backends.resolve(args.backend) if args.backend else ())) + "\n")
        return 0
    chosen = backends.resolve(args.backend)
    for backend in chosen:
        if (reason := backends.why_unavailable(backend.id)) is not None:
            raise UsageError(f"{backend.id} cannot run: {reason}")

    def progress(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    tallies = []
    for family, tally in run(families, chosen, progress):
        tallies.append((family, tally))
        progress(f"{family}: {describe(tally)}")
    text = "\n".join(_table(tallies))
    if args.json == "-":
        sys.stdout.write(values.dumps(_document(tallies, chosen)))
    else:
        sys.stdout.write(f"{text}\n")
        if args.json:
            files.write(Path(args.json), _document(tallies, chosen))
    if not any(tally.total for _, tally in tallies):
        raise SuiteError("no fault was planted: none exists on the chosen backends")
    return int(any(tally.survived for _, tally in tallies))


def _listed(families: Sequence[str], chosen: Sequence[Backend]) -> Iterator[str]:
    """The faults that can be planted by name: id, family and, in words, what is broken."""
    told = [
        (mutant.id, family, mutant.fault)
        for family in families
        for mutant in planting.mutants(family)
        if not chosen or any(mutant.applies(backend) for backend in chosen)
    ]
    width = max((len(name) for name, _, _ in told), default=0)
    return (f"{name:<{width}}  {family:<11}  {fault}" for name, family, fault in told)


def describe(tally: Tally) -> str:
    """One line: ``table: 57 planted, 57 caught by running, 0 by a list alone, 0 equivalent, 0 survived (3.1 s)``."""
    return (
        f"{tally.kind}: {tally.total} planted, {tally.by_running} caught by running, {tally.by_list} by a list alone, "
        f"{len(tally.equivalent)} equivalent, {len(tally.survived)} survived ({tally.seconds:.1f} s)"
    )


def _table(tallies: Sequence[tuple[str, Tally]]) -> list[str]:
    width = max((len(tally.kind) for _, tally in tallies), default=4) + 2
    head = f"{'family':<13}{'faults':<{width}}{'planted':>9}{'running':>9}{'list':>6}{'equivalent':>12}{'survived':>10}"
    told = [head, "-" * len(head)]
    for family, t in tallies:
        told.append(
            f"{family:<13}{t.kind:<{width}}{t.total:>9}{t.by_running:>9}{t.by_list:>6}{len(t.equivalent):>12}"
            f"{len(t.survived):>10}"
        )
    told += [
        f"at the op's own entry alone, {tally.kind}: {', '.join(tally.entry_alone)}"
        for _, tally in tallies
        if tally.entry_alone
    ]
    told += [f"SURVIVED {family}: {name}" for family, tally in tallies for name in tally.survived]
    return told


def _document(tallies: Sequence[tuple[str, Tally]], chosen: Sequence[Backend]) -> dict[str, Any]:
    from amp_checks.backends import environment

    return {
        "schema": "amp_checks/selftest",
        "version": 1,
        "environment": environment.describe(),
        "backends": [backend.id for backend in chosen],
        "tallies": [{"family": family, **dataclasses.asdict(tally)} for family, tally in tallies],
    }
