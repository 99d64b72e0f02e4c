"""``amp-checks ranges``: the table of safe input magnitudes, measured here and now."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from amp_checks.cli import output
from amp_checks.core import NotEmulated, Raised, UsageError, unknown
from amp_checks.core.limits import EMULATION
from amp_checks.families.ranges import probe
from amp_checks.families.ranges.cases import CASES
from amp_checks.families.ranges.inputs import RangeCase
from amp_checks.report import ranges as report
from amp_checks.torch_api import state
from amp_checks.torch_api.backend import Backend

SCHEMA = "amp_checks/ranges"
MEANING = (
    "below, above: what the next magnitude gives: inf or NaN; underflows, inaccurate: finite and wrong; "
    "float32 too: FP32 fails as well"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    output.add_backend(parser)
    parser.add_argument("--op", action="append", default=[], metavar="NAME", help="repeatable, * and ? as in the shell")
    parser.add_argument("--list", action="store_true", help="name the ops, and measure nothing")
    output.add_json(parser, "the table")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw one backend (needs the extra report)")


def main(args: argparse.Namespace) -> int:
    """Measure and print the ranges, or with ``--list`` print the names of the ops.

    Raises:
        UsageError: an op or a backend is unknown, or cannot run here; or a plot of several backends is asked for.
    """
    cases = _named(args.op)
    if args.list:
        sys.stdout.write("\n".join(case.name for case in cases) + "\n")
        return 0
    chosen = output.chosen_backends(args)
    if args.plot and len(chosen) > 1:
        raise UsageError("--plot draws one backend: name it with --backend")
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'amp-checks[report]'")
    lines, without = measured(cases, chosen)
    bound = f"{probe.BOUND.value:g} {probe.BOUND.unit}"
    head = [f"safe input magnitudes, torch {torch.__version__}: finite and within {bound}", MEANING]
    emulated = [EMULATION[0]] if any(backend.emulated for backend in chosen) else []
    text = "\n".join([*head, *emulated, *report.described(lines), *without])
    output.emit(args, document(lines, without), text)
    if args.plot:
        output.write(args.plot, report.standalone(report.plot(lines, name="ranges")))
    return 0


def _named(patterns: Sequence[str]) -> list[RangeCase]:
    names = [case.name for case in CASES]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise unknown("op", pattern, names, listed_by="amp-checks ranges --list")
    return [
        case for case in CASES if not patterns or any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)
    ]


def measured(cases: Iterable[RangeCase], chosen: Sequence[Backend]) -> tuple[list[report.Line], list[str]]:
    """The lines of the table, and of each row that gave none, why."""
    lines: list[report.Line] = []
    without: list[str] = []
    for case in cases:
        for backend in chosen:
            if not case.runs_on(backend):
                continue
            try:
                lines += _lines(case, backend)
            except (Raised, NotEmulated) as error:
                without.append(f"{case.name} on {backend.id}: not measured: {error}")
    return lines, without


def _lines(case: RangeCase, backend: Backend) -> Iterator[report.Line]:
    with warnings.catch_warnings(), state.one_thread(), backend.activate():
        warnings.simplefilter("ignore")
        found = probe.measure(case, backend)
    for direction, one in found.items():
        stated = case.stated(backend, direction)
        yield report.Line(
            op=case.name,
            backend=backend.id,
            direction=direction,
            policy=case.policy(backend.device_type),
            low=None if one.amp.empty else one.amp.low,
            high=None if one.amp.empty else one.amp.high,
            below=one.amp.below,
            above=one.amp.above,
            why=stated.why if stated else "",
        )


def document(lines: Sequence[report.Line], without: Sequence[str]) -> dict[str, Any]:
    """The table as plain values; ``low`` and ``high`` are null where no magnitude is safe."""
    return {
        "schema": SCHEMA,
        "version": 1,
        "torch": torch.__version__,
        "bound": f"{probe.BOUND.value:g} {probe.BOUND.unit}",
        "ranges": [
            {
                **{name: getattr(line, name) for name in ("op", "backend", "direction", "policy")},
                **{
                    name: None if value is None else float(f"{value:.5g}")
                    for name, value in (("low", line.low), ("high", line.high))
                },
                **{name: getattr(line, name) for name in ("below", "above", "why")},
            }
            for line in lines
        ],
        "not_measured": list(without),
    }
