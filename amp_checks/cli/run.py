"""``amp-checks run``: the verdict. Starts pytest on the suite, and on nothing else."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from amp_checks import backends
from amp_checks.cli import output
from amp_checks.core import UsageError
from amp_checks.pytest_plugin import time_limit

CONFORMANCE = Path(__file__).parents[1] / "conformance"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    parser.description = main.__doc__
    output.add_backend(parser)
    output.add_family(parser)
    parser.add_argument("--item", action="append", default=[], metavar="ID", help="one item by its id, repeatable")
    parser.add_argument("--plant", metavar="FAULT", help="plant that fault, to see checks fail; see selftest --list")
    parser.add_argument("--full", action="store_true", help="include the slow cases that only nightly runs cover")
    parser.add_argument(
        "--require-cuda", action="store_true", help="the gate: fail unless a CUDA device ran the checks"
    )
    parser.add_argument("--expect-torch", metavar="VERSION", help="fail unless torch is of this version")
    output.add_json(parser, "the results")
    parser.add_argument("--report-dir", metavar="DIR", help="write every report format into that folder")
    parser.add_argument(
        "--time-limit",
        type=time_limit.seconds,
        metavar="SECONDS",
        help="abort any item that runs longer than SECONDS and report it; 0 disables the limit "
        f"(default: {time_limit.SECONDS:g})",
    )
    parser.add_argument("-n", "--workers", metavar="N", help="parallel workers, a number or auto (needs pytest-xdist)")
    parser.add_argument("-k", metavar="EXPRESSION", help="only items whose id matches, as in pytest")
    parser.add_argument("-m", metavar="MARKERS", help="only items so marked (cuda, cpu, emulated), as in pytest")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    parser.add_argument("--collect-only", action="store_true", help="list the items, run none")
    parser.add_argument("-v", "--verbose", action="store_true", help="one line per item")


def main(args: argparse.Namespace) -> int:
    """Run the checks with the suite's own pytest configuration, whatever folder this is called in.

    The ini, conftest and PYTEST_ADDOPTS of that folder have no say, nor has any other plugin that is installed.
    """
    import pytest

    for name in args.backend:
        backends.backend(name)
    output.chosen_families(args)
    command = [
        *("-c", str(CONFORMANCE / "pytest.ini"), "--rootdir", str(CONFORMANCE), "--noconftest"),
        *("-p", "amp_checks.plugin", str(CONFORMANCE / "suite.amp")),
        *_selection(args),
        *_workers(args),
    ]
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if args.json == "-":
        return _with_json_on_stdout(command)
    command += ["--amp-json", str(Path(args.json).resolve())] if args.json else []
    return int(pytest.main(command))


def _selection(args: argparse.Namespace) -> list[str]:
    """What to run, as options of the plugin and of pytest."""
    switches = (
        ("--amp-full", args.full),
        ("--amp-require-cuda", args.require_cuda),
        ("-x", args.exitfirst),
        ("--collect-only", args.collect_only),
        ("-q", args.collect_only),
        ("-v", args.verbose),
    )
    values = (
        *(("--amp-backend", name) for name in args.backend),
        *(("--amp-family", name) for name in args.family),
        *(("--amp-item", name) for name in args.item),
        ("--amp-plant", args.plant),
        ("--amp-expect-torch", args.expect_torch),
        ("--amp-report-dir", str(Path(args.report_dir).resolve()) if args.report_dir else None),
        ("--amp-time-limit", None if args.time_limit is None else str(args.time_limit)),
        ("-k", args.k),
        ("-m", args.m),
    )
    given = [option for option, wanted in switches if wanted]
    return [*given, *(part for option, value in values if value is not None for part in (option, value))]


def _workers(args: argparse.Namespace) -> list[str]:
    """Parallel workers, as options of pytest-xdist."""
    has_xdist = importlib.util.find_spec("xdist") is not None
    number = args.workers
    if args.require_cuda and number is None and not args.collect_only:
        number = "auto"  # a crash in one item must not take the report with it
    if number in (None, "0"):
        return []
    if not has_xdist:
        what = "-n" if args.workers else "--require-cuda without -n 0 uses a worker for each GPU, and"
        raise UsageError(f"{what} needs pytest-xdist: pip install 'amp-checks[xdist]'")
    if number not in ("auto", "logical") and not number.isdecimal():
        raise UsageError(f"-n takes a number or auto, not {number!r}")
    return ["-p", "xdist.plugin", "-n", number, "--dist", "worksteal"]


def _with_json_on_stdout(command: list[str]) -> int:
    """Standard output holds the JSON alone; what pytest prints goes to standard error."""
    import pytest

    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            status = int(pytest.main([*command, "--amp-json", str(file)]))
            text = file.read_text(encoding="utf-8") if file.exists() else ""
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)
    sys.stdout.write(text)
    return status
