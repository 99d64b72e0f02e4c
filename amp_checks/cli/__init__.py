"""The command line, ``amp-checks``: the parser, the exit statuses, and one module a command.

Exit status: 0 right; 1 something is wrong with AMP; 2 interrupted; 3 the suite itself failed; 4 usage, or the gate's
own conditions are not met. Every non-zero one comes with failing findings or a line ``amp-checks: error: ...``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from amp_checks import __version__
from amp_checks.cli import output, script_line
from amp_checks.core import SuiteError, UsageError
from amp_checks.report import files

COMMANDS = {
    "run": "the verdict: run the checks",
    "audit": "your own model and training step",
    "watch": "your own training, from its first step to its last",
    "worth": "what AMP saves and gains for a program, and why not more",
    "policy": "cast policies: declared, registered, observed",
    "ranges": "input magnitudes at which ops are safe under AMP",
    "selftest": "plant every fault: killed, survived",
    "diff": "two results, or the rules of two torch versions: what changed",
    "report": "any report format, from the results of one run or of several parts",
    "env": "torch, devices, driver, and which backends can run",
}
"""Name -> help. The module of that name has ``add_arguments(parser)`` and ``main(args)``, which gives the status."""

RUN_SCRIPTS = ("audit", "watch", "worth")
"""Commands that take a script: what follows it belongs to the script."""

MAY_BE_EMPTY = ("k", "m", "expect_torch")
"""Options for which nothing is as good as not given: what passes on an environment variable leaves them empty."""


class _Parser(argparse.ArgumentParser):
    """argparse with our error line and our status for usage."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"amp-checks: error: {message} (amp-checks --help)\n")
        raise SystemExit(4)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the command's ``main``. Only the module of the command that is named is imported."""
    parser = _Parser(prog="amp-checks", description="Is automatic mixed precision right, here?")
    parser.add_argument("--version", action="version", version=f"amp-checks {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    named = next((word for word in arguments if not word.startswith("-")), None)
    theirs: Sequence[str] = ()
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if name == named:
            module = importlib.import_module(f"{__name__}.{name}")
            module.add_arguments(command)
            command.set_defaults(main=module.main)
            if name in RUN_SCRIPTS:
                arguments, theirs = script_line.split(command, arguments)
    args = parser.parse_args(arguments)
    args.script_arguments = tuple(theirs)
    return args


def _check(args: argparse.Namespace) -> None:
    """Refuse, before anything runs, empty names, and files that cannot be written (`run` looks at these itself)."""
    for name, given in vars(args).items():
        if (given == "" or (isinstance(given, list) and "" in given)) and name not in MAY_BE_EMPTY:
            raise UsageError(f"--{name.replace('_', '-')} is given an empty name: is a variable unset?")
    for name in ("json", "plot", "html", "output"):
        if args.command != "run" and (target := getattr(args, name, None)) not in (None, "-"):
            files.check_target(Path(target))


def entry(arguments: Sequence[str] | None = None) -> int:
    """What the console script calls; returns the exit status."""
    output.open_streams()
    try:
        args = parse(sys.argv[1:] if arguments is None else arguments)
        _check(args)
        status = int(args.main(args))
        sys.stdout.flush()  # here, where what cannot be written is reported
    except UsageError as error:
        return _failed(error, 4)
    except SuiteError as error:
        return _failed(error, 3)
    except KeyboardInterrupt:
        return _failed("interrupted", 2)
    except BrokenPipeError:
        output.drop_stdout()
        return 2
    except OSError as error:
        output.drop_stdout()
        return _failed(error, 3)
    return status


def _failed(why: object, status: int) -> int:
    sys.stderr.write(f"amp-checks: error: {why}\n")
    return status
