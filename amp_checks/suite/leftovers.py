"""Who left global state changed: the code under test, or the check around it.

The state is compared at the borders of the code under test: each `attempt`, and each region that a backend gives a
check. What changed in between is that code's doing: a failed finding names it, and it is put back at once, so that the
check goes on as if nothing were. What changes elsewhere is the check's own doing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from amp_checks.core import Finding, under_test
from amp_checks.torch_api import state

WHY = "code under test leaves the global state as it found it"


class Leftovers:
    """What the code under test has left behind, as failed findings: one for each piece of state and each subject.

    Inside an `attempt` regions are what the backend makes, untouched: the comparison at its end covers them.
    """

    def __init__(self) -> None:
        self.findings: dict[str, Finding] = {}
        self.attempts = 0

    def around(self, subject: str) -> _Attempt:
        return _Attempt(self, subject)

    def region(self, make: Callable[[], AbstractContextManager[Any]]) -> AbstractContextManager[Any]:
        if self.attempts:
            return make()
        with under_test("making a region"):
            return _Region(self, make())

    def compare(self, subject: str, before: state.Snapshot) -> None:
        """Put back what differs from ``before``, and keep a finding of it."""
        for name, (then, now) in state.put_back(before).items():
            self.findings.setdefault(
                f"{name} after {subject}",
                Finding(
                    subject=f"{name} after {subject}",
                    actual=str(now).removeprefix("torch."),
                    expected=str(then).removeprefix("torch."),
                    ratio=math.inf,
                    threshold=1.0,
                    why=WHY,
                ),
            )


class _Attempt:
    """The border around a call."""

    def __init__(self, found: Leftovers, subject: str) -> None:
        self._found, self._subject = found, subject

    def __enter__(self) -> None:
        self._found.attempts += 1
        self._before = state.capture_switches()

    def __exit__(self, *_: object) -> None:
        self._found.attempts -= 1
        self._found.compare(self._subject, self._before)


class _Region:
    """The border around a region of a check; in all else the region itself. What it raises is the code under test's."""

    def __init__(self, found: Leftovers, region: Any) -> None:
        self._found, self._region = found, region
        self._before: list[state.Snapshot] = []

    def __enter__(self) -> Any:
        self._before.append(state.capture_autocast())
        with under_test("entering a region"):
            return self._region.__enter__()

    def __exit__(self, *error: object) -> Any:
        try:
            with under_test("leaving a region"):
                return self._region.__exit__(*error)
        finally:
            # A region answers for autocast alone: the check may have changed all else inside it.
            self._found.compare("a region", self._before.pop())

    def __call__(self, function: Any) -> Any:
        return self._region(function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)
