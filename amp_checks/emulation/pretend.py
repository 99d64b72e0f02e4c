"""Functions and attributes that name a device: inside a region, the emulated device is the CPU under another name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amp_checks.core import DEVICE_TYPES, NotEmulated

Handler = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
"""Takes the device type and the call's arguments; returns the result, or NotImplemented to go on with the call."""


def translate(device: Any, device_type: str) -> Any:
    """``"cpu"`` for any way of writing the emulated device; anything else as it is."""
    if isinstance(device, str):
        kind, _, index = device.partition(":")
        if kind != device_type:
            return device
    elif isinstance(device, torch.device):
        if device.type != device_type:
            return device
        index = "" if device.index is None else str(device.index)
    elif isinstance(device, int) and not isinstance(device, bool):
        index = str(device)
    else:
        return device
    if index not in ("", "0"):
        raise NotEmulated(
            f"{device_type}:{index}", f"one device is emulated; write {device_type!r} or '{device_type}:0'"
        )
    return torch.device("cpu")


def emulated_device(device_type: str) -> torch.device:
    """The one device that is emulated."""
    return torch.device(device_type) if device_type == "cpu" else torch.device(device_type, 0)


def _device(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del kwargs
    real: torch.device = _get_device(args[0])
    return real if real.type != "cpu" else emulated_device(device_type)


def _is_device(name: str) -> Handler:
    def answer(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del kwargs
        if _get_device(args[0]).type != "cpu":
            return NotImplemented
        return device_type == name

    return answer


def _get_device_index(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del kwargs
    return 0 if device_type != "cpu" and _get_device(args[0]).type == "cpu" else NotImplemented


def _move(name: str) -> Handler:
    """``tensor.cuda()`` and its like: the tensor itself when that is the emulated device."""

    def move(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if device_type != name:
            return NotImplemented
        for device in (*args[1:2], kwargs.get("device")):
            if device is not None:
                translate(device, device_type)
        return args[0]

    return move


_PINNED = "_amp_checks_pinned"


def pinned(tensor: Any) -> Any:
    """The tensor, its memory marked as pinned: views share the mark."""
    if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
        setattr(tensor.untyped_storage(), _PINNED, True)
    return tensor


def _is_pinned(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del device_type, kwargs
    return args[0].layout is torch.strided and hasattr(args[0].untyped_storage(), _PINNED)


def _pin_memory(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A copy, as on a device: who changes it does not change the original."""
    return args[0] if _is_pinned(device_type, args, kwargs) else pinned(args[0].clone())


LEGACY_KINDS = tuple("Float Double Half BFloat16 Byte Char Short Int Long Bool".split())
_LEGACY_TYPES = {f"torch.cuda.{kind}Tensor": f"torch.{kind}Tensor" for kind in LEGACY_KINDS}
_DEVICE_TYPES = {host: device for device, host in _LEGACY_TYPES.items()}


def host_type(kind: Any) -> str | None:
    """``"torch.HalfTensor"`` for ``torch.cuda.HalfTensor``, by name or as the class; None for anything else."""
    if not isinstance(kind, str):
        kind = getattr(kind, "_original", kind)  # a class may be its stand-in
        kind = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', '')}"
    return _LEGACY_TYPES.get(kind)


def _type(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``tensor.type()`` names the device; ``tensor.type("torch.cuda.HalfTensor")`` is a conversion of the dtype."""
    if device_type != "cuda":
        return NotImplemented
    kind = kwargs.get("dtype", args[1] if len(args) > 1 else None)
    if kind is None:
        name = args[0].type()
        return _DEVICE_TYPES.get(name, name)
    host = host_type(kind)
    return NotImplemented if host is None else args[0].type(host)


_get_device: Callable[[Tensor], torch.device] = Tensor.device.__get__

HANDLERS: dict[Any, Handler] = {
    Tensor.device.__get__: _device,
    Tensor.get_device: _get_device_index,
    Tensor.pin_memory: _pin_memory,
    Tensor.is_pinned: _is_pinned,
    Tensor.type: _type,
}
HANDLERS.update(
    {getattr(Tensor, f"is_{name}").__get__: _is_device(name) for name in DEVICE_TYPES if hasattr(Tensor, f"is_{name}")}
)
HANDLERS.update({getattr(Tensor, name): _move(name) for name in DEVICE_TYPES if hasattr(Tensor, name)})
