"""What is raised and by whom: the suite, its user, the code under test, the emulation."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from amp_checks.core import border
from amp_checks.core.model import Finding

P = ParamSpec("P")
T = TypeVar("T")


class NotEmulated(RuntimeError):
    """The emulation, not AMP, lacks an operation: neither a pass nor a failed check.

    ``op`` is the operation as its user wrote it or as the dispatcher names it; ``reason`` ends with what to change.
    """

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op} cannot be emulated (the emulation lacks it, not AMP): {reason}")
        self.op = op
        self.reason = reason


class SuiteError(Exception):
    """The suite cannot do what was asked: bad table, bad fixture, unknown id. One message, no traceback."""


class UsageError(SuiteError):
    """What the user asked for does not exist or cannot be had (exit status 4)."""


class UnknownName(UsageError, KeyError):
    """No such thing exists; look-ups in a mapping may raise it."""

    __str__ = UsageError.__str__  # KeyError's puts the message in quotes


def unknown(kind: str, name: str, known: Iterable[str], *, listed_by: str = "") -> UnknownName:
    """The error of a name that does not exist; it says which do.

    Args:
        kind: what it would have named: ``backend``.
        name: the one given.
        known: the names that exist.
        listed_by: where they are too many for a line: the command that lists them, in place of all but the nearest.
    """
    names = list(known)
    if not listed_by:
        return UnknownName(f"unknown {kind} {name!r}; there are {', '.join(names)}")
    near = " or ".join(map(repr, difflib.get_close_matches(name, names, n=3, cutoff=0.5)))
    hint = f" did you mean {near}?" if near else ""
    return UnknownName(f"unknown {kind} {name!r};{hint} {listed_by} lists all {len(names)}")


RAISED = "the code under test raised"
"""The ``why`` of a finding that stands for an exception."""


class Raised(Exception):
    """The code under test raised. A check catches it where an exception is what it expects."""

    def __init__(self, subject: str, error: BaseException) -> None:
        super().__init__(f"{subject}: {type(error).__name__}: {error}")
        self.subject = subject
        self.error = error

    def finding(self) -> Finding:
        """The failed finding that stands for an exception which the check did not expect."""
        return Finding(
            subject=self.subject,
            actual=f"{type(self.error).__name__}: {first_line(self.error)}",
            expected="no exception",
            ratio=math.inf,
            threshold=1.0,
            why=RAISED,
        )


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's text: torch appends C++ stack traces and hints after it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def attempt(subject: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: D417
    """Run code under test, and nothing else, through here.

    Args:
        subject: what is being run, as a finding will name it (``"forward"``, ``"scaler.step"``).
        function: the code under test; called with the rest of the arguments.

    Raises:
        Raised: the code under test raised; ``error`` holds its exception.
        NotEmulated: passed on as it is: the emulation's lack is no fault of the code under test.
        MemoryError, torch.OutOfMemoryError, ...: passed on: want of memory says nothing of the code under test.
    """
    with under_test(subject), border.current().around(subject):
        return function(*args, **kwargs)


@contextmanager
def under_test(subject: str) -> Iterator[None]:
    """What is raised inside is the code under test's: as of `attempt`, without a border."""
    try:
        yield
    except (NotEmulated, Raised):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise Raised(subject, error) from error


@contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Record all warnings except `ResourceWarning`, which comes at garbage collection and may be of unrelated code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        yield caught


def out_of_memory(error: BaseException | None) -> bool:
    """Whether the error says that memory ran out: the device's, the CPU allocator's (a bare RuntimeError), Python's."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint({"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)
