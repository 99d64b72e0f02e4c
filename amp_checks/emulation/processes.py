"""What programs of several processes ask, answered where the one device has one process."""

from __future__ import annotations

from typing import Any

import torch

from amp_checks.core import NotEmulated


def init_process_group(original: Any, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
    """One process alone exchanges nothing: gloo does what NCCL would."""
    if "nccl" in str(backend or "nccl"):
        backend = "gloo"
    kwargs.pop("device_id", None)
    found = original(backend, *args, **kwargs)
    if torch.distributed.get_world_size() > 1:
        torch.distributed.destroy_process_group()
        raise NotEmulated("torch.distributed with NCCL", "several processes have no device between them; write gloo")
    return found


def spawn(original: Any, function: Any, args: Any = (), nprocs: int = 1, join: bool = True, **kwargs: Any) -> Any:
    """A process for each device, and there is one: a new process would know nothing of the emulation."""
    del original, kwargs
    if nprocs != 1:
        raise NotEmulated(f"torch.multiprocessing.spawn of {nprocs} processes", "one device is emulated: spawn one")
    function(0, *args)
    return None if join else _Joined()


class _Joined:
    """Of processes that were spawned and came to their end."""

    def join(self, *args: Any, **kwargs: Any) -> bool:
        """True: none is left."""
        del args, kwargs
        return True
