"""Memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def give_back() -> None:
    """Collect what cycles hold, and hand freed memory back to the system, where its C library can.

    A model and its gradients are held by cycles, which Python collects when it likes; and what was freed in pieces
    glibc keeps, in case it is asked for again.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
