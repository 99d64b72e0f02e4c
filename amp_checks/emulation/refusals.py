"""What a program may ask of a device that the emulation cannot give, and what to write instead.

One row per name: where torch keeps it, and the end of the message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from amp_checks.torch_api import private


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Attribute ``name`` of ``owner`` is refused inside a region; ``applies`` may look at the arguments first.

    What torch's own code asks for is no wish of the user's (decompositions are scripted when they are first needed),
    unless it ``stands_for_user``: modules call the user's scripted forward.
    """

    owner: Any
    name: str
    instead: str
    stands_for_user: bool = False
    applies: Callable[[str, tuple[Any, ...], dict[str, Any]], bool] = lambda *_: True

    @property
    def title(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


def _in_autocast(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    del kwargs
    return torch.is_autocast_enabled(device_type) and private.scripted_from(args[0]) is None


_GRAPHS = "ops run on the CPU, which records no graph; call the function itself"
_KERNELS = (
    "it compiles for the device, and there is none; keep a Python function for machines without one, and call that"
)
_ALLOCATORS = "no memory of a device is there to take; leave it out"
_NCCL = "there are no devices for it to connect; call torch.distributed's own, with gloo"
_SCRIPT = (
    "TorchScript runs its ops where autocast's emulation cannot reach them; call the Python function or module itself"
)

REFUSALS: tuple[Refusal, ...] = (
    *(
        Refusal(owner=owner, name=name, instead=instead)
        for owner, names, instead in (
            (torch.cuda, "CUDAGraph graph make_graphed_callables graph_pool_handle ExternalStream", _GRAPHS),
            (torch.cuda.graphs, "CUDAGraph graph make_graphed_callables graph_pool_handle", _GRAPHS),
            (torch.accelerator, "Graph", _GRAPHS),
            (torch.cuda.jiterator, "_create_jit_fn _create_multi_output_jit_fn", _KERNELS),
            (torch.cuda, "MemPool caching_allocator_alloc caching_allocator_delete", _ALLOCATORS),
            (torch.cuda.memory, "CUDAPluggableAllocator change_current_allocator", _ALLOCATORS),
            (
                torch.cuda.nccl,
                "all_reduce reduce broadcast all_gather reduce_scatter init_rank unique_id version",
                _NCCL,
            ),
        )
        for name in names.split()
    ),
    *(
        Refusal(owner=kind, name="__call__", instead=_SCRIPT, applies=_in_autocast, stands_for_user=True)
        for kind in (private.ScriptFunction, private.ScriptMethod)
    ),
)
