"""Torch's private process group of threads: every rank is a thread of this process. Importing this imports no group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

BACKEND = "threaded"
"""Name under which `torch.distributed.init_process_group` knows the group."""


@contextmanager
def threaded_group() -> Iterator[None]:
    """Each thread inside has a world of its own, as each process has; the world of the process is put back."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    # Without it the registry of groups in C++ is shared by all threads, and each rank's group replaces the last.
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    try:
        yield
    finally:
        threaded.ProcessLocalGroup.reset()
        threaded._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)


def join_group(rank: int, size: int, store: Any) -> None:
    """Make the calling thread that rank."""
    dist.init_process_group(backend=BACKEND, rank=rank, world_size=size, store=store)


def leave_group() -> None:
    """The calling thread is a rank no more."""
    if dist.is_initialized():
        dist.destroy_process_group()


def end_waiting(error: BaseException) -> None:
    """Wake every rank that waits in a collective: it ends by `SystemExit`."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    threaded.ProcessLocalGroup.exception_handle(error)
