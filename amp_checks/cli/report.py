"""``amp-checks report``: any report format, from results written earlier."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from amp_checks.cli import output
from amp_checks.report import FORMATS, merging, reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="results written by --json")
    parser.add_argument("--format", default="markdown", choices=sorted(FORMATS), help="default: markdown")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--gate",
        action="store_true",
        help="exit as a run with these results would: 1 AMP is wrong, 3 a check broke, 2 a part did not finish, 4 a "
        "condition of the gate is not met or nothing ran (default: 0 once the report is written)",
    )


def main(args: argparse.Namespace) -> int:
    """Make a report from results written earlier; several files are the parts of one run."""
    document = merging.merge([reading.read(Path(name)) for name in args.files])
    output.write(args.output, FORMATS[args.format].render(document))
    if not args.gate:
        return 0
    verdict = document.verdict
    if verdict.outcome:
        sys.stderr.write(f"amp-checks: error: {verdict.line}\n")
    return verdict.outcome
