"""Where the code under test begins and ends. Whoever judges a check may look at the state of the process there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol


class Watch(Protocol):
    """Who is notified at the borders."""

    def around(self, subject: str) -> AbstractContextManager[Any]:
        """Entered around a call of the code under test."""

    def region(self, make: Callable[[], AbstractContextManager[Any]]) -> AbstractContextManager[Any]:
        """Gives the region that a backend makes, or one around it."""


class _Nobody:
    def around(self, subject: str) -> AbstractContextManager[Any]:
        del subject
        return nullcontext()

    def region(self, make: Callable[[], AbstractContextManager[Any]]) -> AbstractContextManager[Any]:
        return make()


_watch: ContextVar[Watch] = ContextVar("watch", default=_Nobody())  # noqa: B039 - it has no state


def current() -> Watch:
    """Who watches the borders in this context."""
    return _watch.get()


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Tell ``watch`` of every border until the end of the block."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
