"""Streams and events of the emulated device: ops run in order on the CPU, so whatever waits has waited already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch


class EmulatedStream:
    """The one queue of the device, as ``torch.cuda.Stream`` and ``torch.Stream`` show it."""

    stream_id = device_index = cuda_stream = 0
    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        del device
        self.priority = priority
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """As on a device: the stream before is the current one again."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmulatedStream)

    def __hash__(self) -> int:
        return 0

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a graph is recorded."""
        return False

    def synchronize(self) -> None:
        """Wait for all work."""

    def wait_stream(self, stream: Any) -> None:
        """Wait for what that stream holds."""

    def wait_event(self, event: Any) -> None:
        """Wait for that event."""

    def record_event(self, event: EmulatedEvent | None = None) -> EmulatedEvent:
        """An event, recorded now."""
        event = event or EmulatedEvent(enable_timing=True)
        event.record()
        return event


class EmulatedEvent:
    """A point in time, by the host's clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at: float | None = None
        self.device = torch.device("cuda", 0)

    def record(self, stream: Any = None) -> None:
        """It is now."""
        del stream
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """What follows comes after it."""

    def query(self) -> bool:
        """Whether it has come."""
        return True

    def synchronize(self) -> None:
        """Wait for it."""

    def elapsed_time(self, end: EmulatedEvent) -> float:
        """Milliseconds of the host from this event to that.

        Raises:
            RuntimeError: one was not recorded.
        """
        if self._at is None or end._at is None:
            raise RuntimeError("both events must be recorded before their times are compared")
        return (end._at - self._at) * 1000.0


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """``torch.cuda.stream(stream)``; None is no stream."""
    del stream
    yield
