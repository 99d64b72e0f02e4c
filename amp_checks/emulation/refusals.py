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


def _names_the_device(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device", args[0] if args else "cpu")
    return isinstance(device, str | torch.device) and torch.device(device).type == device_type


def _in_autocast(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    del args, kwargs
    return torch.is_autocast_enabled(device_type)


_STREAMS = "there are no streams: ops run in order on the CPU; leave it out where torch.cuda.is_available() is False"
_SCRIPT = (
    "TorchScript runs its ops where autocast's emulation cannot reach them; call the Python function or module itself"
)
_INDEX = "there is one device and it is always the current one; leave it out where torch.cuda.is_available() is False"
_LEGACY = "write torch.tensor(..., dtype=..., device='cuda')"

_LEGACY_TENSORS = "Float Double Half BFloat16 Byte Char Short Int Long Bool".split()

REFUSALS: tuple[Refusal, ...] = (
    *(
        Refusal(owner=torch.cuda, name=name, instead=_STREAMS)
        for name in (
            "Stream ExternalStream Event CUDAGraph current_stream default_stream set_stream synchronize"
        ).split()
    ),
    *(Refusal(owner=torch, name=name, instead=_STREAMS) for name in ("Stream", "Event")),
    *(
        Refusal(owner=torch.cuda, name=name, instead=_INDEX)
        for name in ("set_device", "current_device", "device", "device_of")
    ),
    Refusal(
        owner=torch,
        name="Generator",
        instead="random ops draw the CPU's numbers; write torch.Generator()",
        applies=_names_the_device,
    ),
    Refusal(
        owner=torch,
        name="compile",
        instead="a compiled graph would miss the device's rules; call the function or module itself",
    ),
    *(Refusal(owner=torch.jit, name=name, instead=_SCRIPT) for name in ("script", "trace", "trace_module")),
    *(
        Refusal(owner=kind, name="__call__", instead=_SCRIPT, applies=_in_autocast, stands_for_user=True)
        for kind in (private.ScriptFunction, private.ScriptMethod)
    ),
    *(Refusal(owner=torch.cuda, name=f"{kind}Tensor", instead=_LEGACY) for kind in _LEGACY_TENSORS),
)
