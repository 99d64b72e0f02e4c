"""Streams and events of the emulated device: ops run in order on the CPU, so whatever waits has waited already."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from amp_checks.core import NotEmulated
from amp_checks.emulation import pretend

_CUDA_STREAM, _CUDA_EVENT = torch.cuda.Stream, torch.cuda.Event
_ids = itertools.count(1)
_local = threading.local()


class EmulatedStream:
    """A queue of the device, as ``torch.cuda.Stream`` and ``torch.Stream`` show it.

    Args:
        device: the one device, or None.
        priority: kept, and without effect.
        stream_id: of the stream that is meant; a new one gets a number of its own. 0 is the default stream.
    """

    device_index, device_type = 0, 1

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any) -> None:
        pretend.translate(device, "cuda")
        self.priority = priority
        self.device = torch.device("cuda", 0)
        self.stream_id = next(_ids) if stream_id is None else stream_id

    # Not a stand-in's answer: who imported torch's class before the region asks with the class itself.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return _CUDA_STREAM

    @property
    def cuda_stream(self) -> int:
        """The queue's handle."""
        return self.stream_id

    def __enter__(self) -> Self:
        self._before = current_stream()
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._before)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CUDA_STREAM) and getattr(other, "stream_id", None) == self.stream_id

    def __hash__(self) -> int:
        return hash((self.device_index, self.stream_id))

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
        event = event or EmulatedEvent()
        event.record(self)
        return event


class EmulatedEvent:
    """A point in time, by the host's clock.

    Args:
        device: of ``torch.Event``: the one device.
        enable_timing: whether times may be compared.
    """

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **_: Any) -> None:
        if isinstance(device, bool):  # the first argument of torch.cuda.Event
            enable_timing = device
        else:
            pretend.translate(device, "cuda")
        self._at: float | None = None
        self._is_timed = enable_timing
        self.device = torch.device("cuda", 0)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return _CUDA_EVENT

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
            ValueError: one was not made with ``enable_timing=True``, or was not recorded.
        """
        if not (self._is_timed and end._is_timed):
            raise ValueError("elapsed_time: both events must be made with enable_timing=True")
        if self._at is None or end._at is None:
            raise ValueError("elapsed_time: both events must be recorded before their times are compared")
        return (end._at - self._at) * 1000.0

    def ipc_handle(self) -> bytes:
        """A handle for another process.

        Raises:
            NotEmulated: always.
        """
        raise NotEmulated("Event.ipc_handle", "events end at the process; leave interprocess=True out")


DEFAULT = EmulatedStream(stream_id=0)


def current_stream() -> EmulatedStream:
    """The stream that this thread is on."""
    found: EmulatedStream = getattr(_local, "stream", DEFAULT)
    return found


def set_stream(stream: Any) -> None:
    """Go to that stream; None changes nothing."""
    if stream is not None:
        _local.stream = stream


@contextmanager
def on_stream(stream: Any) -> Iterator[Any]:
    """``torch.cuda.stream(stream)``; None is no stream."""
    before = current_stream()
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(before)
