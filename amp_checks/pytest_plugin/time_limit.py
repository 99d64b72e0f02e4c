"""A time limit for one item: one that hangs ends, and is named, whatever it hangs in."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator

SECONDS = 600.0
"""Default limit of one item; the slowest takes some ten seconds."""

GRACE = 15.0
"""Seconds after the limit at which a process ends whose watching thread did not get the interpreter."""

REPORTING = 120.0
"""Seconds for that thread, once it runs, to leave a report."""


def seconds(text: str) -> float:
    """A limit as an option gives it.

    Raises:
        ValueError: no number, negative or not finite.
    """
    limit = float(text)
    if not 0.0 <= limit < math.inf:
        raise ValueError(text)
    return limit


class TimeLimit:
    """Watches items of one process, one at a time.

    Two watchers, for two ways to hang. A thread can name the item and leave a report, but it needs the interpreter,
    which code that hangs inside a C function may hold. `faulthandler`'s own watcher needs nothing of Python: it writes
    where every thread stands and ends the process.

    Args:
        seconds: the limit of each item; 0 for none.
        expired: called in the watching thread with the item's name; must not return.

    Make it before pytest captures the output: it keeps standard error as it is then, to be read when all is over.
    """

    def __init__(self, seconds: float, *, expired: Callable[[str], object]) -> None:
        self.seconds = seconds
        self._expired = expired
        self._stderr = os.dup(sys.__stderr__.fileno()) if seconds and sys.__stderr__ is not None else None

    def say(self, text: str) -> None:
        """One line on standard error as it was, captured or not."""
        if self._stderr is not None:
            os.write(self._stderr, f"{text}\n".encode())

    @contextlib.contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Give the code inside ``seconds``, and `GRACE` more to a report about it."""
        if self._stderr is None:
            yield
            return
        timer = threading.Timer(self.seconds, self._expire, [name])
        timer.daemon = True
        timer.start()
        faulthandler.dump_traceback_later(self.seconds + GRACE, exit=True, file=self._stderr)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            timer.cancel()

    def _expire(self, name: str) -> None:
        if self._stderr is not None:
            faulthandler.dump_traceback(file=self._stderr)
            faulthandler.dump_traceback_later(REPORTING, exit=True, file=self._stderr)
        self._expired(name)

    def close(self) -> None:
        """Let go of standard error."""
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None
