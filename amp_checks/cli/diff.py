"""``amp-checks diff``: two results, or the autocast rules of two torch versions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from amp_checks.audit.finding import Severity
from amp_checks.cli import output, policy_diff
from amp_checks.core import UsageError
from amp_checks.monitor import baseline, journal
from amp_checks.report import reading, recorded
from amp_checks.report.diff import compare, formats
from amp_checks.report.document import Document

GATES = ("worse", "any", "never")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    parser.add_argument("old", metavar="OLD", help="results written by --json, cast policies, or a torch version")
    parser.add_argument("new", metavar="NEW", help="results under question")
    parser.add_argument(
        "--results", action="store_true", help="of two torch versions, compare the recorded results, not the rules"
    )
    parser.add_argument("--format", default="text", choices=sorted(formats.FORMATS), help="default: text")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--drift",
        type=float,
        default=compare.DRIFT,
        metavar="SHARE",
        help=f"report error ratios that moved by so much of their threshold (default: {compare.DRIFT})",
    )
    parser.add_argument("--fail-on", default="worse", choices=GATES, help="what gives exit status 1 (default: worse)")


def _side(name: str) -> Document:
    """Results by the name of their file, or by a torch version whose results ship with the package."""
    if name in recorded.versions() and not Path(name).exists():
        return recorded.read(name)
    if not Path(name).exists():
        raise UsageError(
            f"{name!r} is neither a file nor a torch version with recorded results; those are "
            f"{', '.join(recorded.versions())}"
        )
    return reading.read(Path(name))


def _watched(args: argparse.Namespace) -> int:
    """Two records of `amp-checks watch`: what the new run does otherwise, each line a finding."""
    found = baseline.compare([journal.read(Path(args.old))], journal.read(Path(args.new)))
    lines = [
        f"{one.severity.upper():7} {one.rule}{f'  [in {one.module}]' if one.module else ''}\n  {one.message}\n"
        for one in found
    ]
    verdict = f"{len(found)} things are otherwise" if found else "nothing is otherwise"
    output.write(args.output, "".join([*lines, f"{verdict} in {args.new} than in {args.old}\n"]))
    worse = any(one.severity is not Severity.NOTE for one in found)
    return int(args.fail_on != "never" and (worse or (args.fail_on == "any" and bool(found))))


def main(args: argparse.Namespace) -> int:
    """Compare cast policies (of two versions, or files that `policy` wrote), records of watched runs, or two results.

    Exit status 1 on what ``--fail-on`` names, 4 where an unfinished run leaves no verdict.

    Raises:
        UsageError: ``--drift`` is no share of a threshold, or a side is neither a file nor a recorded version.
        SuiteError: a file cannot be read or written, or holds no results.
    """
    if not args.results and policy_diff.accepts(args.old) and policy_diff.accepts(args.new):
        return policy_diff.main(args)
    if not args.drift > 0.0:
        raise UsageError(f"--drift takes a positive share of a threshold, such as {compare.DRIFT}, not {args.drift}")
    if journal.is_record(Path(args.old)) and journal.is_record(Path(args.new)):
        return _watched(args)
    old, new = _side(args.old), _side(args.new)
    found = compare.compare(old, new, drift=args.drift)
    text = formats.FORMATS[args.format](found)
    output.write(args.output, text)
    if args.fail_on == "never":
        return 0
    if found.worse or (args.fail_on == "any" and found.changes):
        return 1
    if found.incomplete:
        sys.stderr.write(f"amp-checks: error: {found.verdict()}\n")
        return 4
    return 0
