"""A script audited from Python, in a user's test for one: in a process that begins with nothing, and its report."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_checks.core import NotEmulated, SuiteError, UsageError, first_line

if TYPE_CHECKING:
    from amp_checks.audit.report import Report

_RAISED = {kind.__name__: kind for kind in (UsageError, SuiteError)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a process is to audit. ``settings`` are those of `amp_checks.audit.scripts.program.Script`."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool
    backend: str
    ignore: str | None
    quick: bool
    settings: dict[str, Any]


def audit_script(
    script: str | os.PathLike[str],
    *arguments: str,
    module: bool = False,
    backend: str = "emulated-cuda-float16",
    cwd: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    ignore: str | os.PathLike[str] | None = None,
    quick: bool = False,
    steps: int | None = None,
    time_limit: float | None = None,
) -> Report:
    """Audit a training script as it is; as ``amp-checks audit SCRIPT arguments`` does, for use in a test.

    >>> audit_script("train.py", "--epochs", "1").raise_for_findings()  # doctest: +SKIP

    The script runs several times, each time from its start, in processes of their own and a scratch copy of its folder:
    neither the calling process nor a file of the user's is changed. What it prints is not shown.

    Args:
        script: its path, relative to ``cwd``; with ``module`` the name of a module, as ``python -m`` takes it.
        *arguments: its arguments.
        module: whether ``script`` names a module.
        backend: the id of a backend; ``amp-checks env`` lists them.
        cwd: the folder that it runs in; None: the current one.
        environment: variables that are set for it, beside those of this process.
        ignore: a file of known findings, as ``--ignore`` takes it, relative to ``cwd``.
        quick: make two runs alone.
        steps: iterations after its first step; None: six.
        time_limit: seconds of each run; None: 600.

    Raises:
        UsageError: there is no such script, backend or file, the script cannot be audited there, or never trains.
        SuiteError: the audit itself failed.
    """
    settings = {name: value for name, value in (("steps", steps), ("time_limit", time_limit)) if value is not None}
    order = Order(
        target=os.fspath(script),
        arguments=tuple(map(os.fspath, arguments)),
        is_module=module,
        backend=backend,
        ignore=os.fspath(ignore) if ignore is not None else None,
        quick=quick,
        settings=settings,
    )
    with tempfile.TemporaryDirectory(prefix="amp-checks-") as folder:
        ordered, done = Path(folder, "order"), Path(folder, "done")
        ordered.write_bytes(pickle.dumps(order))
        # The variables that tell a test of its runner are not the script's.
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        variables |= {**(environment or {}), "PYTHONPATH": os.pathsep.join(_import_path())}
        process = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", f"import {__name__} as front; front.main()", str(ordered), str(done)],
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not done.exists():
            raise SuiteError(f"the audit of {order.target} ended with {process.returncode}: {process.stdout[-2000:]}")
        kind, value = pickle.loads(done.read_bytes())  # noqa: S301 - written by our own process
    if kind != "report":
        raise _RAISED[kind](value)
    report: Report = value
    return report


def _import_path() -> Sequence[str]:
    """Where this package was imported from, too."""
    own = str(Path(__file__).parents[3])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return [*given, own] if own not in given else given


def _audit(order: Order) -> Report:
    from amp_checks.audit import ignore as known
    from amp_checks.audit.report import audit
    from amp_checks.audit.rules import IDS
    from amp_checks.audit.scripts.program import script
    from amp_checks.backends import backend, why_unavailable

    ignored = known.load(Path(order.ignore), rules=IDS) if order.ignore is not None else ()
    chosen = backend(order.backend)
    if (why := why_unavailable(chosen.id)) is not None:
        raise UsageError(f"{chosen.id} cannot be had here: {why}")
    with script(order.target, *order.arguments, is_module=order.is_module, **order.settings) as program:
        try:
            return audit(program, chosen, ignored=ignored, quick=order.quick)
        except NotEmulated as error:
            raise UsageError(f"{program.id} cannot be audited under {chosen.id}: {first_line(error)}") from error


def main() -> None:
    """What the process does: it reads one file and writes another."""
    ordered, done = map(Path, sys.argv[1:])
    order = pickle.loads(ordered.read_bytes())  # noqa: S301 - written by our own process
    try:
        answer: tuple[str, Any] = "report", _audit(order)
    except (UsageError, SuiteError) as error:
        answer = UsageError.__name__ if isinstance(error, UsageError) else SuiteError.__name__, str(error)
    written = done.with_suffix(".part")
    written.write_bytes(pickle.dumps(answer))
    written.rename(done)
