"""What whoever waits for an audit reads meanwhile, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

HEALTHY_RUNS = 5
"""Runs of a program in which nothing is wrong: as it is, in float32 and float64, with scalers, with an overflow."""
MOST_RUNS = 30
"""About as many are made to name and place what is wrong."""


class Progress:
    """A line for each run; on a terminal one line that is written over."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._begun = 0
        self._done: list[float] = []

    def begin(self, what: str, *, runs: int = HEALTHY_RUNS) -> None:
        """Say how many runs there will be."""
        more = "" if runs < HEALTHY_RUNS else f", up to about {MOST_RUNS} to name and place what is wrong"
        self._write(f"amp-checks: {what}: {runs} runs{more}\n")

    def start(self, words: str) -> Callable[[], None]:
        """A run begins; call what comes back when it has ended."""
        self._begun += 1
        number, began = self._begun, time.monotonic()
        over = "\r\x1b[K" if sys.stderr.isatty() else ""
        left = HEALTHY_RUNS - number + 1
        about = f", about {left * sum(self._done) / len(self._done):.0f} s left" if self._done and left > 0 else ""
        if over:
            self._write(f"{over}  run {number}: {words}{about}")

        def ended() -> None:
            took = time.monotonic() - began
            self._done.append(took)
            self._write(over or f"  run {number}: {words}, {took:.1f} s{about}\n")

        return ended

    def _write(self, text: str) -> None:
        if not self._silent:
            sys.stderr.write(text)
            sys.stderr.flush()
