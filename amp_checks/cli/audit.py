"""``amp-checks audit``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from amp_checks import backends
from amp_checks.audit import case as training
from amp_checks.audit import explain, ignore
from amp_checks.audit.case import AuditCase
from amp_checks.audit.finding import Severity
from amp_checks.audit.report import Report, as_json, audit, text
from amp_checks.audit.rules import IDS
from amp_checks.audit.scripts.program import STEPS, TIME_LIMIT, script
from amp_checks.audit.scripts.progress import Progress
from amp_checks.cli import output, script_line
from amp_checks.core import NotEmulated, UsageError, first_line
from amp_checks.reference.parity import FEWEST_SEEDS
from amp_checks.report import FORMATS, json_format
from amp_checks.report.document import AUDITS, Document
from amp_checks.torch_api.backend import Backend

TEMPLATE = Path(__file__).with_name("template.py.txt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    parser.description = (
        "Run a model and its training step under FP32 and AMP; say what is wrong, where, and what to change."
    )
    parser.usage = "amp-checks audit [options] (SCRIPT | -m MODULE) [its arguments] | FILE:CASE [options]"
    parser.add_argument(
        "case", nargs="?", metavar="SCRIPT | FILE:CASE", help="a training script, as it is; or file.py:function, a case"
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module that trains, as python -m runs it")
    output.add_backend(parser)
    output.add_json(parser, "the findings")
    parser.add_argument("--modules", action="store_true", help="print what was seen module by module, too")
    parser.add_argument("--html", metavar="FILE", help="write a page of it (needs the extra `report`)")
    parser.add_argument("--template", action="store_true", help="print a first case file, and stop")
    parser.add_argument("--explain", metavar="RULE", help="print what a rule is about, with a faulty program, and stop")
    parser.add_argument("--ignore", metavar="FILE", help="known findings: rule | place | until | reason")
    parser.add_argument(
        "--fail-on", choices=("error", "warning"), default="error", help="the least severity that fails (error)"
    )
    parser.add_argument("--quick", action="store_true", help="two runs alone: what they show, in a first pass")
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"of a script: iterations after its first step ({STEPS})"
    )
    parser.add_argument(
        "--time-limit", type=float, default=TIME_LIMIT, metavar="S", help=f"of each run of a script ({TIME_LIMIT:g})"
    )
    parser.add_argument("--keep", metavar="DIR", help="of a script: keep there what its first run wrote and printed")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="also compare N trainings with FP32 ones")


def main(args: argparse.Namespace) -> int:
    """Exit status: 0 nothing at or above ``--fail-on``; 1 something.

    Raises:
        UsageError: the case, a backend or the ignore list is not what it should be.
    """
    if args.template:
        sys.stdout.write(TEMPLATE.read_text(encoding="utf-8"))
        return 0
    if args.explain:
        sys.stdout.write(explain.page(args.explain).text())
        return 0
    if not args.case and not args.module:
        raise UsageError("name a script, a case (file.py:function), or ask for --template")
    if args.steps < 1 or args.time_limit <= 0:
        raise UsageError("--steps takes a number of iterations, at least 1; --time-limit seconds, more than 0")
    if args.seeds != 0 and args.seeds < FEWEST_SEEDS:
        raise UsageError(f"--seeds takes a number of trainings, at least {FEWEST_SEEDS} for a spread, not {args.seeds}")
    if args.html and (why := FORMATS["html"].lacks()) is not None:
        raise UsageError(why)
    ignored = ignore.load(Path(args.ignore), rules=IDS) if args.ignore else ()
    named = output.chosen_backends(args) if args.backend else ()
    with _program(args) as case:
        reports, refused = _reports(case, named, ignored, quick=args.quick)
    document = Document(schema=AUDITS, audits=[as_json(report) for report in reports])
    if args.html:
        output.write(args.html, FORMATS["html"].render(document))
    output.emit(
        args, json_format.as_values(document), "\n\n".join(text(report, modules=args.modules) for report in reports)
    )
    if any(report.incomplete for report in reports):
        raise KeyboardInterrupt
    if refused is not None:
        raise refused
    return int(any(report.failures(Severity(args.fail_on)) for report in reports))


@contextmanager
def _program(args: argparse.Namespace) -> Iterator[AuditCase]:
    """What is audited: a script or module, for as long as its scratch folder is there; or a case."""
    if args.module or script_line.is_script(args.case):
        settings = {"steps": args.steps, "time_limit": args.time_limit, "keep": Path(args.keep) if args.keep else None}
        if args.seeds:
            raise UsageError("--seeds compares the trainings of a case; a script seeds itself")
        target = args.module or args.case
        arguments = args.script_arguments
        with script(target, *arguments, is_module=bool(args.module), progress=Progress(), **settings) as program:
            yield program
    else:
        yield dataclasses.replace(training.load(args.case), seeds=args.seeds)


def _reports(
    case: AuditCase, named: Sequence[Backend], ignored: tuple[ignore.Ignored, ...], *, quick: bool
) -> tuple[list[Report], UsageError | None]:
    """The reports, and what is raised once they are written: that a backend which was named gave none."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    for entry in ignore.expired(ignored, today):
        sys.stderr.write(f"amp-checks: the ignore of {entry.rule} ran out on {entry.until}: {entry.reason}\n")
    chosen = named or backends.resolve(_default(case))
    reports: list[Report] = []
    refused: UsageError | None = None
    for backend in chosen:
        try:
            reports.append(audit(case, backend, ignored=ignored, quick=quick))
            if reports[-1].incomplete:
                break
        except NotEmulated as error:
            message = f"{case.id} cannot be audited under {backend.id}: {first_line(error)}"
            if named:
                refused = refused or UsageError(f"{message}; audit it on a real backend, --backend cpu-float16 for one")
            sys.stderr.write(f"amp-checks: note: {message}\n" if len(chosen) > 1 or not named else "")
        except UsageError as error:
            refused = refused or error
            sys.stderr.write(f"amp-checks: note: under {backend.id}: {first_line(error)}\n" if len(chosen) > 1 else "")
    if not reports:
        raise refused or UsageError(
            f"{case.id} can be audited under none of {', '.join(backend.id for backend in chosen)}: see the lines above"
        )
    return reports, refused


def _default(case: AuditCase) -> tuple[str, ...]:
    """All default backends for a case that takes its device; cuda, real or emulated, for one that names its own."""
    ids = backends.default_ids()
    if case.isolated:  # it was written for one device
        return ("cuda-float16",) if "cuda-float16" in ids else ("emulated-cuda-float16",)
    if training.takes_device(case.build):
        return tuple(name for name in ids if case.runs_on(backends.backend(name)))
    return tuple(name for name in ids if name in ("cuda-float16", "emulated-cuda-float16"))
