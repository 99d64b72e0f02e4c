"""``amp-checks audit``: its arguments, and what it does with them. Importing this imports no torch."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from amp_checks.core import NotEmulated, UsageError, first_line

if TYPE_CHECKING:
    from amp_checks.audit.case import AuditCase
    from amp_checks.audit.report import Report

TEMPLATE = Path(__file__).with_name("template.py.txt")
DESCRIPTION = "Run a model and its training step under FP32 and AMP; say what is wrong, where, and what to change."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("case", nargs="?", metavar="MODULE:CASE", help="package.module:function or file.py:function")
    parser.add_argument("--backend", action="append", default=[], metavar="ID", help="repeatable; see amp-checks env")
    parser.add_argument("--json", metavar="FILE", help="write the findings there ('-': standard output)")
    parser.add_argument("--modules", action="store_true", help="print what was seen module by module, too")
    parser.add_argument("--html", metavar="FILE", help="write a page of it (needs the extra `report`)")
    parser.add_argument("--template", action="store_true", help="print a first case file, and stop")
    parser.add_argument("--ignore", metavar="FILE", help="known findings: rule | place | until | reason")
    parser.add_argument(
        "--fail-on", choices=("error", "warning"), default="error", help="the least severity that fails (error)"
    )
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="also compare N trainings with FP32 ones")


def main(args: argparse.Namespace) -> int:
    """Exit status: 0 nothing at or above ``--fail-on``; 1 something.

    Raises:
        UsageError: the case, a backend or the ignore list is not what it should be.
    """
    if args.template:
        sys.stdout.write(TEMPLATE.read_text(encoding="utf-8"))
        return 0
    if not args.case:
        raise UsageError("name a case, package.module:function, or ask for --template")
    from amp_checks.reference.parity import FEWEST_SEEDS

    if args.seeds != 0 and args.seeds < FEWEST_SEEDS:
        raise UsageError(f"--seeds takes a number of trainings, at least {FEWEST_SEEDS} for a spread, not {args.seeds}")
    reports = _reports(args)
    failed = _write(args, reports)
    return 1 if failed else 0


def _reports(args: argparse.Namespace) -> list[Report]:
    import datetime

    from amp_checks import backends
    from amp_checks.audit import case as training
    from amp_checks.audit import ignore
    from amp_checks.audit.report import audit
    from amp_checks.audit.rules import RULES

    ids = frozenset(RULES) | {"trains-differently"}
    ignored = ignore.load(Path(args.ignore), rules=ids) if args.ignore else ()
    today = datetime.datetime.now(tz=datetime.UTC).date()
    for entry in ignore.expired(ignored, today):
        sys.stderr.write(f"amp-checks: the ignore of {entry.rule} ran out on {entry.until}: {entry.reason}\n")
    for name in args.backend:
        if reason := backends.why_unavailable(name):
            raise UsageError(f"{name} cannot be had here: {reason}")
    case = dataclasses.replace(training.load(args.case), seeds=args.seeds)
    chosen = args.backend or _default(case)
    reports = []
    for backend in backends.resolve(chosen):
        try:
            reports.append(audit(case, backend, ignored=ignored))
        except NotEmulated as error:
            told = f"{case.id} cannot be audited under {backend.id}: {first_line(error)}"
            if args.backend:
                raise UsageError(f"{told}; audit it on a real backend, --backend cpu-float16 for one") from error
            sys.stderr.write(f"amp-checks: note: {told}\n")
    if not reports:
        raise UsageError(f"{case.id} can be audited under none of {', '.join(chosen)}: see the lines above")
    return reports


def _default(case: AuditCase) -> tuple[str, ...]:
    """All default backends for a case that takes its device; cuda, real or emulated, for one that names its own."""
    from amp_checks import backends
    from amp_checks.audit.case import takes_device

    ids = backends.default_ids()
    if takes_device(case.build):
        return ids
    return tuple(name for name in ids if name in ("cuda-float16", "emulated-cuda-float16"))


def _write(args: argparse.Namespace, reports: list[Report]) -> bool:
    from amp_checks.audit.finding import Severity
    from amp_checks.audit.report import as_json, text
    from amp_checks.report import FORMATS, files
    from amp_checks.report.document import AUDITS, Document

    document = Document(schema=AUDITS, audits=[as_json(report) for report in reports])
    if args.html:
        files.write_text(Path(args.html), FORMATS["html"].render(document))
    if args.json == "-":
        sys.stdout.write(FORMATS["json"].render(document))
    else:
        if args.json:
            files.write_text(Path(args.json), FORMATS["json"].render(document))
        sys.stdout.write("\n\n".join(text(report, modules=args.modules) for report in reports) + "\n")
    return any(report.failures(Severity(args.fail_on)) for report in reports)
