"""A run in a process of its own: forked, so that imports are paid for once, with what it found sent back in a file."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import io
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from amp_checks.audit.runs.session import Ran
from amp_checks.core import NotEmulated, SuiteError, UsageError

_POLL = 0.01
_PR_SET_PDEATHSIG = 1
_KEPT_LINES = 15
"""Of the output of a run that went wrong."""


_interrupts: list[int] = []
"""Signals that were to interrupt this process, and may not have."""


def _interrupt(number: int, frame: types.FrameType | None) -> NoReturn:
    _interrupts.append(number)
    signal.default_int_handler(number, frame)


class Stopped(Exception):
    """Stands for an exception that no other process can have: of a class of the program's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that is to be made.

    Attributes:
        what: the program, as messages name it.
        folder: where its output (``output.txt``) and what it found are written.
        limit: seconds after which it is ended; None: never.
        talks: whether its output is ours.
    """

    what: str
    folder: Path
    limit: float | None = None
    talks: bool = False

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    @property
    def _found(self) -> Path:
        return self.folder / "found.pt"

    def run(self, perform: Callable[[Callable[[Any], None]], Any]) -> Any:
        """What ``perform`` gives in a process of its own; it may also end by calling what it is given with that.

        Raises:
            UsageError, NotEmulated, SuiteError: raised in there.
            UsageError: it died, or took longer than its limit.
        """
        return self.start(perform)()

    def start(self, perform: Callable[[Callable[[Any], None]], Any]) -> Callable[[], Any]:
        """Start that process; call what comes back for its result. Raises as `run` does.

        Only the main thread may start one: what other threads hold, a forked process drops, temporary folders too.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._live(perform)
        return lambda: self._result(pid)

    def _result(self, pid: int) -> Any:
        try:
            status = self._interruptible(pid) if self.talks else self._wait(pid)
        finally:  # with all the processes that it started
            for kill, target in ((os.killpg, pid), (os.kill, pid)):
                with contextlib.suppress(OSError):
                    kill(target, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if not self._found.exists():
            raise UsageError(f"{self.what}: its process {_ending(status)} before it was done{self.tail()}")
        kind, value = torch.load(self._found, weights_only=False, mmap=True)
        if kind == "ran":
            return value
        raise {"usage": UsageError, "emulation": NotEmulated}.get(kind, SuiteError)(*value)

    def _interruptible(self, pid: int) -> int:
        """An interrupt is handed on; what it has found by then is what there is."""
        try:
            return self._wait(pid)
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGINT)
            status = self._wait(pid)
            if not self._found.exists():
                raise
            return status

    def _wait(self, pid: int) -> int:
        ends = time.monotonic() + self.limit if self.limit is not None else None
        while True:
            if _interrupts:  # Python drops what a signal raises in its callbacks around a fork
                _interrupts.clear()
                raise KeyboardInterrupt
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            if ends is not None and time.monotonic() > ends:
                raise UsageError(
                    f"{self.what} did not come to an end within {self.limit:.0f} s: make it smaller by its own "
                    f"arguments, or give it longer with --time-limit{self.tail()}"
                )
            time.sleep(_POLL)

    def _live(self, perform: Callable[[Callable[[Any], None]], Any]) -> NoReturn:
        """The life of the process."""
        try:
            _interrupts.clear()
            os.setsid()
            _die_with_parent()
            signal.signal(signal.SIGINT, _interrupt)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if not self.talks:
                self._silence()
            self._deliver("ran", perform(lambda value: self._deliver("ran", value)))
        except NotEmulated as error:
            self._deliver("emulation", (error.op, error.reason))
        except UsageError as error:
            self._deliver("usage", (str(error),))
        except SuiteError as error:
            self._deliver("suite", (str(error),))
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it was
            traceback.print_exc()
            self._deliver("suite", (f"{self.what}: {type(error).__name__}: {error}{self.tail()}",))
        finally:
            os._exit(70)

    def _silence(self) -> None:
        """Its output goes to a file, and it has no input."""
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", "replace", write_through=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def _deliver(self, kind: str, value: Any) -> NoReturn:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        part = self._found.with_suffix(".part")
        torch.save((kind, _portable(value)), part)
        part.replace(self._found)
        os._exit(0)

    def tail(self) -> str:
        """The last lines of its output, for a message; none where it wrote nothing."""
        with contextlib.suppress(OSError):
            lines = self.output.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
            if lines:
                return "; its last lines:\n  " + "\n  ".join(lines[-_KEPT_LINES:])
        return ""


def _die_with_parent() -> None:
    """Where the system can: a killed audit leaves no script behind."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was ended by signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.WEXITSTATUS(status)}"


def _portable(value: Any) -> Any:
    """As another process can have it: an exception of the program's own class is one of that name."""
    ran = value[0] if isinstance(value, tuple) and isinstance(value[0], Ran) else None
    failure = ran.trace.failure if ran is not None else None
    if ran is not None and failure is not None and not isinstance(failure.error, NotEmulated | SuiteError):
        named = _Named(type(failure.error).__name__, str(failure.error))
        ran.trace.failure = dataclasses.replace(failure, error=named)
    return value


class _Named(Exception):
    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name, str(self))


def _named(name: str, text: str) -> Exception:
    kind: type[Exception] = type(name, (Stopped,), {})
    return kind(text)
