"""``amp-checks watch``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from amp_checks.audit.finding import Severity
from amp_checks.cli import output
from amp_checks.core import SuiteError, UsageError
from amp_checks.monitor import baseline, journal, report
from amp_checks.monitor.recorder import EVERY, Stopped, of_rank, rank, watch, world


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    parser.description = (
        "Run a training as it is, record its loss scale, skipped steps and values, and judge them over time. "
        "Under torchrun: torchrun [options] -m amp_checks watch train.py; then --read the files of all ranks."
    )
    parser.usage = "amp-checks watch [options] (SCRIPT | -m MODULE) [its arguments] | --read FILE..."
    parser.add_argument("case", nargs="?", metavar="SCRIPT", help="a training script")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module that trains, as python -m runs it")
    parser.add_argument(
        "--read", nargs="+", metavar="FILE", help="judge what was recorded; of several ranks, all files"
    )
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="FILE",
        help="record of a good run to compare with; repeatable",
    )
    parser.add_argument("--sharded", action="store_true", help="with --read: each rank holds a part of the weights")
    parser.add_argument("--record", metavar="FILE", default="amp-watch.jsonl", help="what is written (amp-watch.jsonl)")
    parser.add_argument(
        "--every", type=int, default=EVERY, metavar="N", help=f"measure values in one of N iterations ({EVERY})"
    )
    parser.add_argument("--stop-on", choices=("error", "warning"), help="end the training at the first finding as bad")
    parser.add_argument(
        "--fail-on", choices=("error", "warning"), default="error", help="the least severity that fails (error)"
    )
    output.add_json(parser, "the findings")


def main(args: argparse.Namespace) -> int:
    """Exit status: 0 nothing at or above ``--fail-on``; 1 something, or the script itself failed; 2 interrupted.

    Raises:
        UsageError: no script, one that is not there, or a file that is no record.
    """
    args.good = [journal.read(Path(name)) for name in args.baseline]
    if args.read:
        return _report(args, [journal.read(Path(name)) for name in args.read])
    if not args.case and not args.module:
        raise UsageError("name a script, a module (-m), or files to --read")
    if args.every < 1:
        raise UsageError("--every takes a number of iterations, at least 1")
    path = of_rank(Path(args.record), rank(), world())
    failed = _train(args)
    status = _report(args, [journal.read(path)])
    if failed is not None:
        sys.stderr.write(f"amp-checks: error: {failed}\n")
        return 1
    return status


def _train(args: argparse.Namespace) -> str | None:
    """Run the program in this process, as Python would; give why it failed, or None."""
    before = sys.argv, sys.path[:]
    if args.module:
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = [args.module, *args.script_arguments]
        if _spec(args.module) is None:
            raise UsageError(f"there is no module {args.module}")
    else:
        script = Path(args.case)
        if not script.is_file():
            raise UsageError(f"there is no script {script}")
        sys.path.insert(0, str(script.resolve().parent))
        sys.argv = [args.case, *args.script_arguments]
    try:
        with watch(args.record, every=args.every, stop_on=args.stop_on):
            if args.module:
                runpy.run_module(args.module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(args.case, run_name="__main__")
    except Stopped as stopped:
        sys.stderr.write(f"amp-checks: the training was ended: {stopped}\n")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            return f"the script ended with {ended.code}"
    except (KeyboardInterrupt, SuiteError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever the program raises is shown as Python shows it
        _show(error)
        return f"the script raised {type(error).__name__}"
    finally:
        sys.argv, sys.path[:] = before
    return None


def _spec(module: str) -> object:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _show(error: BaseException) -> None:
    """The program's own traceback, from its first line on."""
    own = error.__traceback__
    places = (os.path.dirname(__file__), os.path.dirname(runpy.__file__) + os.sep + "runpy")  # noqa: PTH120
    while own is not None and own.tb_frame.f_code.co_filename.startswith((places[0], "<frozen runpy>", places[1])):
        own = own.tb_next
    traceback.print_exception(type(error), error, own)


def _report(args: argparse.Namespace, recorded: Sequence[journal.Recorded]) -> int:
    found = report.judged(recorded, sharded=args.sharded)
    if args.good:
        found = report.in_order([*found, *baseline.compare(args.good, recorded[0])])
    output.emit(args, report.as_json(recorded, found), report.text(recorded, found))
    return int(any(one.severity.rank <= Severity(args.fail_on).rank for one in found))
