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
    del args, kwargs
    return torch.is_autocast_enabled(device_type)


_GRAPHS = "ops run on the CPU, which records no graph; call the function itself"
_SCRIPT = (
    "TorchScript runs its ops where autocast's emulation cannot reach them; call the Python function or module itself"
)

REFUSALS: tuple[Refusal, ...] = (
    *(
        Refusal(owner=torch.cuda, name=name, instead=_GRAPHS)
        for name in ("CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle", "ExternalStream")
    ),
    *(
        Refusal(owner=kind, name="__call__", instead=_SCRIPT, applies=_in_autocast, stands_for_user=True)
        for kind in (private.ScriptFunction, private.ScriptMethod)
    ),
)
