"""``amp-checks worth``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amp_checks import backends
from amp_checks.audit import case as training
from amp_checks.audit.case import AuditCase
from amp_checks.audit.scripts.program import STEPS, TIME_LIMIT, script
from amp_checks.audit.scripts.progress import Progress
from amp_checks.cli import output, script_line
from amp_checks.core import NotEmulated, UsageError, first_line
from amp_checks.report import FORMATS, json_format
from amp_checks.report.document import WORTHS, Document
from amp_checks.torch_api.backend import Backend
from amp_checks.worth import devices, records
from amp_checks.worth.devices import Device, table
from amp_checks.worth.report import Worth, as_json, text, worth
from amp_checks.worth.timing import ROUNDS, Timing, timed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    parser.description = (
        "Count what AMP saves of a program, and what it gains on a named device with the reasons; time it where the "
        "device is real. Without a program: the reference model and a transformer."
    )
    parser.usage = "amp-checks worth [options] [(SCRIPT | -m MODULE) [its arguments] | FILE:CASE [options]]"
    parser.add_argument("case", nargs="?", metavar="SCRIPT | FILE:CASE", help="as of amp-checks audit")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module that trains, as python -m runs it")
    output.add_backend(parser)
    output.add_json(parser, "the counts")
    parser.add_argument("--device", metavar="ID", help=f"whose peak figures the roofline has: {', '.join(table())}")
    parser.add_argument("--html", metavar="FILE", help="write a page of it (needs the extra `report`)")
    parser.add_argument("--time", action="store_true", help="also time it on the backends that are real")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of timing ({ROUNDS})")
    parser.add_argument("--against", metavar="FILE", help="fail on what got worse than in that earlier --json")
    parser.add_argument("--min-speedup", type=float, metavar="X", help="fail where AMP is timed to be less fast")
    parser.add_argument(
        "--max-memory", type=float, metavar="X", help="fail where AMP keeps more for backward than X of FP32's bytes"
    )
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"of a script: iterations ({STEPS})")
    parser.add_argument(
        "--time-limit", type=float, default=TIME_LIMIT, metavar="S", help=f"of each run of a script ({TIME_LIMIT:g})"
    )


def main(args: argparse.Namespace) -> int:
    """Exit status: 0 no demand that was made is missed; 1 one is.

    Raises:
        UsageError: the program, a backend, a device or the record is not what it should be.
    """
    _check(args)
    named = output.chosen_backends(args) if args.backend else ()
    record = records.load(Path(args.against)) if args.against else None
    found: list[Worth] = []
    with _programs(args) as programs:
        for case in programs:
            found += _counted(case, named, args)
    document = Document(schema=WORTHS, worths=[as_json(one) for one in found])
    if args.html:
        output.write(args.html, FORMATS["html"].render(document))
    missed = [line for one in found for line in _missed(one, args)]
    missed += records.worse(document.worths, record) if record is not None else []
    shown = [text(one) for one in found] + [f"FAILED {line}" for line in missed]
    output.emit(args, json_format.as_values(document), "\n\n".join(shown))
    return int(bool(missed))


def _check(args: argparse.Namespace) -> None:
    if args.steps < 1 or args.time_limit <= 0:
        raise UsageError("--steps takes a number of iterations, at least 1; --time-limit seconds, more than 0")
    if args.rounds < 8:
        raise UsageError(f"--rounds takes at least 8, for an interval at 99 %, not {args.rounds}")
    for name in ("min_speedup", "max_memory"):
        value = getattr(args, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"--{name.replace('_', '-')} takes a factor, more than 0")
    if args.html and (why := FORMATS["html"].lacks()) is not None:
        raise UsageError(why)
    if args.device is not None:
        devices.device(args.device)


@contextmanager
def _programs(args: argparse.Namespace) -> Iterator[Sequence[AuditCase]]:
    if args.module or (args.case and script_line.is_script(args.case)):
        settings = {"steps": args.steps, "time_limit": args.time_limit}
        target = args.module or args.case
        arguments = args.script_arguments
        with script(target, *arguments, is_module=bool(args.module), progress=Progress(), **settings) as program:
            yield (program,)
    elif args.case:
        yield (training.load(args.case),)
    else:
        from amp_checks.families.worth.cases import CASES

        yield [row.case() for row in CASES[:2]]


def _counted(case: AuditCase, named: Sequence[Backend], args: argparse.Namespace) -> list[Worth]:
    """A program under each backend; what was timed is with the first backend of the device."""
    chosen = named or [backends.backend(name) for name in _default(case)]
    found: list[Worth] = []
    refused: UsageError | None = None
    for backend in chosen:
        try:
            found.append(case.apart(functools.partial(worth, case, backend, _device(backend, args.device))))
        except (NotEmulated, UsageError) as error:
            refused = refused or UsageError(first_line(error))
            sys.stderr.write(f"amp-checks: note: under {backend.id}: {first_line(error)}\n")
    if not found or (named and refused is not None):
        raise refused or UsageError(f"{case.id} can be counted under no backend")
    real = [backend for backend in chosen if not backend.emulated]
    if (args.time or args.min_speedup is not None) and not real:
        raise UsageError("only a real device is timed; name one with --backend, cpu-bfloat16 for one")
    if args.time or args.min_speedup is not None:
        for kind in dict.fromkeys(backend.device_type for backend in real):
            mine = [backend for backend in real if backend.device_type == kind]
            timing = timed(case, mine, machine=_machine(kind), rounds=args.rounds)
            found = [_with(one, timing, mine) for one in found]
    return found


def _with(one: Worth, timing: Timing, mine: Sequence[Backend]) -> Worth:
    """With what was timed of its own dtype."""
    if one.backend not in {backend.id for backend in mine}:
        return one
    speeds = tuple(speed for speed in timing.speeds if speed.dtype == one.low)
    return dataclasses.replace(one, timing=dataclasses.replace(timing, speeds=speeds))


def _default(case: AuditCase) -> tuple[str, ...]:
    ids = backends.default_ids()
    if case.isolated or not training.takes_device(case.build):
        return ("cuda-float16",) if "cuda-float16" in ids else ("emulated-cuda-float16",)
    return ids


def _device(backend: Backend, name: str | None) -> Device:
    if name is not None:
        return devices.device(name)
    return devices.known_as(_machine("cuda") if backend.device_type == "cuda" and not backend.emulated else None)


def _machine(device_type: str) -> str:
    import torch

    if device_type == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{device_type}, {torch.backends.cpu.get_cpu_capability()}, {platform.machine()}"


def _missed(one: Worth, args: argparse.Namespace) -> list[str]:
    missed: list[str] = []
    if args.max_memory is not None and one.saved_share > args.max_memory:
        missed.append(
            f"{one.case} under {one.backend}: keeps {one.saved_share:.3f} of FP32's bytes for backward, "
            f"more than {args.max_memory:g}"
        )
    speeds: Sequence[Any] = one.timing.speeds if one.timing is not None else ()
    if args.min_speedup is not None:
        missed += [
            f"{one.case} under {one.backend}: {speed.speedup:.2f}x ({speed.low:.2f} to {speed.high:.2f}), "
            f"less than {args.min_speedup:g}x"
            for speed in speeds
            if speed.high < args.min_speedup
        ]
    return missed
