"""Memory as a program for CUDA sees it: pinned copies, storages, old tensor types, files loaded to the device."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from amp_checks.emulation import pretend

LEGACY = {f"{kind}Tensor": getattr(torch, f"{kind}Tensor").dtype for kind in pretend.LEGACY_KINDS}
"""``torch.cuda.HalfTensor`` and its like, by their dtypes."""


class OfDtype:
    """What ``isinstance`` takes for a tensor of an old type: any dense tensor of that dtype, in a region."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is self._dtype and instance.layout is torch.strided


def make_legacy(name: str) -> Any:
    """``torch.cuda.HalfTensor(2, 3)``."""

    def give(original: Any, *args: Any, **kwargs: Any) -> Any:
        del original
        return getattr(torch, name)(*args, **kwargs)

    return give


def set_default_tensor_type(original: Any, kind: Any) -> None:
    """The device's types are the CPU's under other names."""
    original(pretend.host_type(kind) or kind)


def sent_storage(original: Any, storage: Any, *args: Any, **kwargs: Any) -> Any:
    """``storage.to(device=...)``, as ``storage.cuda()`` calls it: the storage itself if that is the emulated device."""
    return original(storage, *args, **{**kwargs, "device": pretend.translate(kwargs["device"], "cuda")})


def load(original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``torch.load``: what was saved on a device comes to the emulated one."""
    if map_location is None:
        map_location = _where_it_is
    elif isinstance(map_location, str | torch.device):
        map_location = pretend.translate(map_location, "cuda")
    elif isinstance(map_location, dict):
        map_location = {key: pretend.translate(value, "cuda") for key, value in map_location.items()}
    return original(f, map_location, *args, **kwargs)


def _where_it_is(storage: Any, location: str) -> Any:
    pretend.translate(location, "cuda")
    return storage


_pinned_batches = "_amp_checks_pins"


def start_loading(original: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    """A loader pins in a thread of its own, which is in no region: `next_batch` does it in its place."""
    pins, loader_vars = loader.pin_memory, vars(loader)
    loader_vars["pin_memory"] = False
    try:
        original(iterator, loader, *args, **kwargs)
    finally:
        loader_vars["pin_memory"] = pins
    setattr(iterator, _pinned_batches, pins)


def next_batch(original: Any, iterator: Any) -> Any:
    """As ``pin_memory=True`` has it: tensors are pinned copies, and a batch of one's own class pins itself."""
    batch = original(iterator)
    if getattr(iterator, _pinned_batches, False):
        return torch.utils.data._utils.pin_memory.pin_memory(batch)  # noqa: SLF001 - as the loader does
    return batch


def pins(iterator: Any, loader: Any = None, *_: Any, **__: Any) -> bool:
    """Whether such a loader was asked to pin."""
    del iterator
    return bool(loader.pin_memory)
