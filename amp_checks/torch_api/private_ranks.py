"""Torch's private process group of threads: every rank is a thread of this process. Importing this imports no group."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from amp_checks.torch_api.patching import Patches

BACKEND = "threaded"
"""Name under which `torch.distributed.init_process_group` knows the group."""


@contextmanager
def threaded_group() -> Iterator[None]:
    """Each thread inside has a world of its own, as each process has; the world of the process is put back."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    # Without it the registry of groups in C++ is shared by all threads, and each rank's group replaces the last.
    torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
    threaded._install_threaded_pg()
    try:
        yield
    finally:
        threaded.ProcessLocalGroup.reset()
        threaded._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]


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


_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "broadcast": "broadcast",
    "scatter": "scatter",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
}
"""Method of the group -> name of the collective."""


@contextmanager
def watched_collectives(record: Callable[[int, str, torch.Tensor], None]) -> Iterator[None]:
    """Call ``record`` with rank, collective and the tensor it gives (of all_gather: takes) at each of the group's own
    entries, where DDP's C++ and FSDP's Python both arrive.
    """
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    group = threaded.ProcessLocalGroup
    # One of these may be written in terms of another: the outermost counts.
    inside = threading.local()

    def watching(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "depth", 0) == 0 and name != "barrier":
                given = [*args, *kwargs.values()]
                record(dist.get_rank(), name, _first(given[1 if name == "all_gather" else 0]))
            inside.depth = getattr(inside, "depth", 0) + 1
            try:
                return original(self, *args, **kwargs)
            finally:
                inside.depth -= 1

        return method

    with Patches() as patches:
        for method, name in _COLLECTIVES.items():
            if method in vars(group):
                patches.replace(group, method, functools.partial(watching, name))
        yield


def _first(value: Any) -> torch.Tensor:
    while not isinstance(value, torch.Tensor):
        value = value[0]
    return value


def found_inf_handlers() -> tuple[dict[Any, Any], Any]:
    """DTensor's handlers of ops, and the op that checks gradients: its handler reduces found_inf."""
    from torch.distributed.tensor import DTensor

    op = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
    return DTensor._op_dispatcher._custom_op_handlers, op
