"""Memory of this process and its machine."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from pathlib import Path


def give_back() -> None:
    """Collect what cycles hold, and hand freed memory back to the system, where its C library can.

    A model and its gradients are held by cycles, which Python collects when it likes; and what was freed in pieces
    glibc keeps, in case it is asked for again.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available() -> int:
    """Bytes that new processes may take; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return 0


def peak_of_children() -> int:
    """Bytes that the largest process took of those that this one started and that have ended (Linux)."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
