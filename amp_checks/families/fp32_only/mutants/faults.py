"""Faults in and around a disabled region, as faulty regions and as kernels that misbehave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import LOW

Call = Callable[..., Any]
Plant = Callable[[Backend], AbstractContextManager[Backend]]


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    """``change`` applied to every floating tensor among nested values."""
    return pytree.tree_map_only(torch.Tensor, lambda x: change(x) if x.is_floating_point() else x, values)


class Calls(TorchFunctionMode):
    """Calls of one function go through ``fault(function, args, kwargs)``; all others are left alone."""

    def __init__(self, function: Call, fault: Callable[[Call, Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.fault = fault

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.function:
            return self.fault(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def everywhere(function: Call, fault: Callable[[Call, Any, Any], Any]) -> Plant:
    """The function is faulty wherever it is called."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        @contextmanager
        def activate() -> Iterator[None]:
            with backend.activate(), Calls(function, fault):
                yield

        yield dataclasses.replace(backend, activate=activate)

    return plant


def in_disabled_regions(function: Call, fault: Callable[[Call, Any, Any], Any]) -> Plant:
    """The function is faulty inside regions with ``enabled=False``."""

    @contextmanager
    def wrap(backend: Backend, device_type: str, *, enabled: bool, **settings: Any) -> Iterator[None]:
        inside = nullcontext() if enabled else Calls(function, fault)
        with backend.autocast(device_type, enabled=enabled, **settings), inside:
            yield

    return regions(wrap)


def regions(wrap: Callable[..., AbstractContextManager[Any]]) -> Plant:
    """Regions are made by ``wrap(backend, device_type, enabled=..., **settings)``."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        def faulty(
            device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
        ) -> AbstractContextManager[Any]:
            return wrap(backend, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

        yield dataclasses.replace(backend, autocast=faulty)

    return plant


def stays_enabled(backend: Backend, device_type: str, **settings: Any) -> AbstractContextManager[Any]:
    """``enabled=False`` is ignored."""
    return backend.autocast(device_type, **{**settings, "enabled": True})


@contextmanager
def leaks(backend: Backend, device_type: str, *, enabled: bool, **settings: Any) -> Iterator[None]:
    """A disabled region does not come back: autocast stays off until the outer region ends."""
    with backend.autocast(device_type, enabled=enabled, **settings):
        yield
    if not enabled:
        torch.set_autocast_enabled(device_type, False)


def computes_in_float32(function: Call, args: Any, kwargs: Any) -> Any:
    """A 16-bit call is computed in float32 in silence, and its result cast back."""
    low = [x.dtype for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dtype in LOW]
    if not low:
        return function(*args, **kwargs)
    wide_args, wide_kwargs = map_tensors(torch.Tensor.float, (args, kwargs))
    return map_tensors(lambda x: x.to(low[0]), function(*wide_args, **wide_kwargs))


def computes_in_float64(function: Call, args: Any, kwargs: Any) -> Any:
    """The result comes out in float64."""
    wide_args, wide_kwargs = map_tensors(torch.Tensor.double, (args, kwargs))
    return function(*wide_args, **wide_kwargs)


def keeps_eleven_bits(function: Call, args: Any, kwargs: Any) -> Any:
    """A float32 kernel that keeps as many bits as TF32 does."""
    out = function(*args, **kwargs)
    return map_tensors(_rounded, out)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    if x.dtype is not torch.float32:
        return x
    bits = x.detach().view(torch.int32)
    short = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return x + (short - x).detach()


def result_rounded(function: Call, args: Any, kwargs: Any) -> Any:
    """The result goes through 16 bits, and is float32 in name only."""
    return map_tensors(
        lambda x: x.to(torch.bfloat16).float() if x.dtype is torch.float32 else x, function(*args, **kwargs)
    )


def detaches(function: Call, args: Any, kwargs: Any) -> Any:
    """The result has lost its history: no gradient flows."""
    return map_tensors(torch.Tensor.detach, function(*args, **kwargs))


def halves_gradient(function: Call, args: Any, kwargs: Any) -> Any:
    """The value is right, and its gradient half of what it should be."""
    return map_tensors(lambda x: x / 2 + (x / 2).detach(), function(*args, **kwargs))


def through_bfloat16(function: Call, args: Any, kwargs: Any) -> Any:
    """A 16-bit call is computed in bfloat16, whatever its dtype."""
    low = [x.dtype for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dtype in LOW]
    if not low:
        return function(*args, **kwargs)
    short_args, short_kwargs = map_tensors(torch.Tensor.bfloat16, (args, kwargs))
    return map_tensors(lambda x: x.to(low[0]), function(*short_args, **short_kwargs))


def five_percent_off(*, in_region: bool) -> Callable[[Call, Any, Any], Any]:
    """A 16-bit call gives too much: inside a region, or outside of all."""

    def off(function: Call, args: Any, kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        return out * 1.05 if out.dtype in LOW and torch.is_autocast_enabled("cpu") is in_region else out

    return off


def one_foreign_value(function: Call, args: Any, kwargs: Any) -> Any:
    """The last value of the result is none that was asked for."""
    out = function(*args, **kwargs)
    out.view(-1)[-1] = 1e4
    return out
