"""``amp-checks selftest``: every planted fault against the checks that must catch it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from amp_checks import backends
from amp_checks.backends import environment
from amp_checks.cli import output
from amp_checks.core import SuiteError
from amp_checks.suite import planting, selftest
from amp_checks.suite.planting import Tally
from amp_checks.torch_api.backend import Backend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    output.add_family(parser)
    output.add_backend(parser)
    parser.add_argument("--list", action="store_true", help="name the faults that run --plant takes, and plant none")
    output.add_json(parser, "the tallies")


def main(args: argparse.Namespace) -> int:
    """Print the tallies, or with ``--list`` the faults; 1 where a fault survived unexplained, else 0.

    Raises:
        UsageError: a family or backend is unknown, or a chosen backend cannot run here.
    """
    families = output.chosen_families(args, planting.families())
    if args.list:
        sys.stdout.write("\n".join(_listed(families, backends.resolve(args.backend) if args.backend else ())) + "\n")
        return 0
    chosen = output.chosen_backends(args)
    tallies = []
    for family, tally in selftest.run(families, chosen, _progress):
        tallies.append((family, tally))
        _progress(f"{family}: {describe(tally)}")
    output.emit(args, _document(tallies, chosen), "\n".join(_table(tallies)))
    if not any(tally.total for _, tally in tallies):
        raise SuiteError("no fault was planted: none exists on the chosen backends")
    return int(any(tally.survived for _, tally in tallies))


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _listed(families: Sequence[str], chosen: Sequence[Backend]) -> Iterator[str]:
    """The faults that can be planted by name: id, family and, in words, what is broken."""
    faults = [
        mutant
        for family in families
        for mutant in planting.mutants(family)
        if not chosen or any(map(mutant.applies, chosen))
    ]
    width = max((len(mutant.id) for mutant in faults), default=0)
    return (f"{mutant.id:<{width}}  {mutant.family:<11}  {mutant.fault}" for mutant in faults)


def describe(tally: Tally) -> str:
    """One line: ``table: 57 planted, 57 killed by execution, 0 killed by the registration check only, ...``."""
    return (
        f"{tally.kind}: {tally.total} planted, {tally.by_running} killed by execution, {tally.by_list} killed by the "
        f"registration check only, {len(tally.equivalent)} equivalent, {len(tally.survived)} survived "
        f"({tally.seconds:.1f} s)"
    )


def _table(tallies: Sequence[tuple[str, Tally]]) -> Iterator[str]:
    width = max((len(tally.kind) for _, tally in tallies), default=4) + 2
    yield f"{'':<{13 + width}}{'':>9}{'killed by':>19}"
    head = f"{'family':<13}{'faults':<{width}}{'planted':>9}{'execution':>11}{'registration':>14}{'equivalent':>12}"
    yield (head := f"{head}{'survived':>10}")
    yield "-" * len(head)
    for family, t in tallies:
        counts = f"{t.total:>9}{t.by_running:>11}{t.by_list:>14}{len(t.equivalent):>12}{len(t.survived):>10}"
        yield f"{family:<13}{t.kind:<{width}}{counts}"
    for _, tally in tallies:
        if tally.entry_alone:
            yield f"killed at op entry only, {tally.kind}: {', '.join(tally.entry_alone)}"
    for family, tally in tallies:
        yield from (f"SURVIVED {family}: {name}" for name in tally.survived)


def _document(tallies: Sequence[tuple[str, Tally]], chosen: Sequence[Backend]) -> dict[str, Any]:
    return {
        "schema": "amp_checks/selftest",
        "version": 1,
        "environment": environment.describe(),
        "backends": [backend.id for backend in chosen],
        "tallies": [{"family": family, **dataclasses.asdict(tally)} for family, tally in tallies],
    }
