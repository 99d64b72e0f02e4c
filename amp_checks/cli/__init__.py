"""The command line, ``amp-checks``: argparse and the exit statuses, nothing else.

Exit status: 0 right; 1 something is wrong with AMP; 2 interrupted; 3 the suite itself failed; 4 usage, or the gate's
own conditions are not met. Every non-zero one comes with failing findings or a line ``amp-checks: error: ...``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from amp_checks import __version__, backends
from amp_checks.cli import audit, policy_diff
from amp_checks.core import SuiteError, UsageError
from amp_checks.families import FAMILIES
from amp_checks.pytest_plugin import time_limit
from amp_checks.report import FORMATS, diff

CONFORMANCE = Path(__file__).parents[1] / "conformance"


class _Parser(argparse.ArgumentParser):
    """argparse with our error line and our status for usage."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"amp-checks: error: {message} (amp-checks --help)\n")
        raise SystemExit(4)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="amp-checks", description="Is automatic mixed precision right, here?")
    parser.add_argument("--version", action="version", version=f"amp-checks {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    run = commands.add_parser("run", help="the verdict: run the checks", description=_run.__doc__)
    run.add_argument("--backend", action="append", default=[], metavar="ID", help="repeatable; see amp-checks env")
    run.add_argument("--family", action="append", default=[], metavar="F", help=", ".join(FAMILIES))
    run.add_argument("--item", action="append", default=[], metavar="ID", help="one item by its id, repeatable")
    run.add_argument("--plant", metavar="FAULT", help="plant that fault, to see checks fail; see selftest --list")
    run.add_argument("--full", action="store_true", help="also the rows left to a nightly run")
    run.add_argument("--require-cuda", action="store_true", help="the gate: fail unless a CUDA device ran the checks")
    run.add_argument("--expect-torch", metavar="VERSION", help="fail unless torch is of this version")
    run.add_argument("--json", metavar="FILE", help="write the results there ('-': standard output)")
    run.add_argument("--report-dir", metavar="DIR", help="write every report format into that folder")
    run.add_argument(
        "--time-limit",
        type=time_limit.seconds,
        metavar="SECONDS",
        help=f"end an item that runs longer, and name it; 0 for no limit (default: {time_limit.SECONDS:g})",
    )
    run.add_argument("-n", "--workers", metavar="N", help="parallel workers, a number or auto (needs pytest-xdist)")
    run.add_argument("-k", metavar="EXPRESSION", help="only items whose id matches, as in pytest")
    run.add_argument("-m", metavar="MARKERS", help="only items so marked (cuda, cpu, emulated), as in pytest")
    run.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    run.add_argument("--collect-only", action="store_true", help="list the items, run none")
    run.add_argument("-v", "--verbose", action="store_true", help="one line per item")
    run.set_defaults(function=_run)

    audit_command = commands.add_parser("audit", help="your own model and training step", description=audit.DESCRIPTION)
    audit.add_arguments(audit_command)
    audit_command.set_defaults(function=audit.main)

    policy = commands.add_parser("policy", help="cast policies: declared, registered, observed")
    policy.add_argument("--backend", action="append", default=[], metavar="ID")
    policy.add_argument("--unsupported", action="store_true", help="the ops that do not run in 16 bits, and the remedy")
    policy.add_argument(
        "--fresh", action="store_true", help="with --unsupported: run torch's op database, recorded or not"
    )
    policy.add_argument("--json", metavar="FILE")
    policy.set_defaults(function=_policy)

    _add_ranges(commands.add_parser("ranges", help="input magnitudes at which ops are safe under AMP"))

    selftest = commands.add_parser("selftest", help="plant every fault: caught, survived")
    selftest.add_argument("--family", action="append", default=[], metavar="F")
    selftest.add_argument("--backend", action="append", default=[], metavar="ID")
    selftest.add_argument("--list", action="store_true", help="name the faults that run --plant takes, and plant none")
    selftest.add_argument("--json", metavar="FILE")
    selftest.set_defaults(function=_selftest)

    diff_command = commands.add_parser("diff", help="two results, or the rules of two torch versions: what changed")
    diff.add_arguments(diff_command)
    diff_command.set_defaults(function=_diff)

    report = commands.add_parser("report", help="any report format, from the results of one run or of several parts")
    report.add_argument("files", nargs="+", metavar="FILE", help="results written by --json")
    report.add_argument("--format", default="markdown", choices=sorted(FORMATS), help="default: markdown")
    report.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    report.add_argument(
        "--gate",
        action="store_true",
        help="exit as a run with these results would: 1 AMP is wrong, 3 a check broke, 2 a part did not finish, 4 a "
        "condition of the gate is not met or nothing ran (default: 0 once the report is written)",
    )
    report.set_defaults(function=_report)

    env = commands.add_parser("env", help="torch, devices, driver, and which backends can run")
    env.add_argument("--json", metavar="FILE")
    env.set_defaults(function=_env)
    return parser


def _add_ranges(ranges: argparse.ArgumentParser) -> None:
    ranges.add_argument("--backend", action="append", default=[], metavar="ID", help="repeatable; see amp-checks env")
    ranges.add_argument("--op", action="append", default=[], metavar="NAME", help="repeatable, * and ? as in the shell")
    ranges.add_argument("--list", action="store_true", help="name the ops, and measure nothing")
    ranges.add_argument("--json", metavar="FILE", help="write the table there ('-': standard output)")
    ranges.add_argument("--plot", metavar="FILE.svg", help="draw one backend (needs the extra report)")
    ranges.set_defaults(function=_ranges)


def _run(args: argparse.Namespace) -> int:
    """Run the checks with the suite's own pytest configuration, whatever folder this is called in.

    The ini, conftest and PYTEST_ADDOPTS of that folder have no say, nor has any other plugin that is installed.
    """
    import pytest

    for name in args.backend:
        backends.backend(name)
    if unknown := [name for name in args.family if name not in FAMILIES]:
        raise UsageError(f"unknown family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
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


def _policy(args: argparse.Namespace) -> int:
    if args.unsupported:
        from amp_checks.cli import unsupported

        return unsupported.main(args)
    if args.fresh:
        raise UsageError("--fresh goes with --unsupported: cast policies are looked at each time")
    from amp_checks.cli import policy

    return policy.main(args)


def _ranges(args: argparse.Namespace) -> int:
    from amp_checks.cli import ranges as ranges_command

    return ranges_command.main(args)


def _selftest(args: argparse.Namespace) -> int:
    from amp_checks.suite import selftest

    return selftest.main(args)


def _diff(args: argparse.Namespace) -> int:
    """Compare cast policies (of two versions, or files that `policy` wrote), or else two results."""
    if not args.results and policy_diff.accepts(args.old) and policy_diff.accepts(args.new):
        return policy_diff.main(args)
    return diff.main(args)


def _report(args: argparse.Namespace) -> int:
    """Make a report from results written earlier; several files are the parts of one run."""
    from amp_checks.report import json_format

    content = json_format.merge([json_format.read(Path(name)) for name in args.files])
    text = FORMATS[args.format].render(content)
    if args.output in (None, "-"):
        sys.stdout.write(text)
    else:
        json_format.write_text(Path(args.output), text)
    if not args.gate:
        return 0
    status, verdict = json_format.gate(content)
    if status:
        sys.stderr.write(f"amp-checks: error: {verdict}\n")
    return status


def _env(args: argparse.Namespace) -> int:
    from amp_checks.backends import environment
    from amp_checks.report import json_format

    found = environment.describe()
    if args.json == "-":
        sys.stdout.write(json_format.dumps(found))
        return 0
    if args.json:
        json_format.write(Path(args.json), found)
    print("\n".join([*environment.lines(found), "", "backends:", *environment.backend_lines(found)]))
    return 0


MAY_BE_EMPTY = ("k", "m", "expect_torch")
"""Options for which nothing is as good as not given: what passes on an environment variable leaves them empty."""


def _check_arguments(args: argparse.Namespace) -> None:
    """Refuse, before anything runs, empty names, and files that cannot be written (`run` looks at these itself)."""
    from amp_checks.report import json_format

    for name, given in vars(args).items():
        if (given == "" or (isinstance(given, list) and "" in given)) and name not in MAY_BE_EMPTY:
            raise UsageError(f"--{name.replace('_', '-')} is given an empty name: is a variable unset?")
    for name in ("json", "plot", "html", "output"):
        if args.function is not _run and (target := getattr(args, name, None)) not in (None, "-"):
            json_format.check_target(Path(target))
    if getattr(args, "html", None) and (why := FORMATS["html"].lacks()) is not None:
        raise UsageError(why)


def _open_streams() -> None:
    """Have a standard output and error that take whatever is written, wherever we were called."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever called us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open while the process is
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Documents are UTF-8, whatever the locale; a terminal has its own encoding, and may lack a character.
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def _let_go_of_stdout() -> None:
    """Where what is still in its buffer cannot be written, drop it: Python would try at its end, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry(arguments: Sequence[str] | None = None) -> int:
    """What the console script calls; returns the exit status."""
    _open_streams()
    try:
        args = _parser().parse_args(arguments)
        _check_arguments(args)
        status = int(args.function(args))
        sys.stdout.flush()  # here, where what cannot be written is told
    except UsageError as error:
        sys.stderr.write(f"amp-checks: error: {error}\n")
        return 4
    except SuiteError as error:
        sys.stderr.write(f"amp-checks: error: {error}\n")
        return 3
    except KeyboardInterrupt:
        sys.stderr.write("amp-checks: error: interrupted\n")
        return 2
    except BrokenPipeError:
        _let_go_of_stdout()
        return 2
    except OSError as error:
        _let_go_of_stdout()
        sys.stderr.write(f"amp-checks: error: {error}\n")
        return 3
    return status


if __name__ == "__main__":
    sys.exit(entry())
