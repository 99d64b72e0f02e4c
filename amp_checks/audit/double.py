"""Run a float32 program in float64: each floating dtype it names is read as float64, its random numbers stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from amp_checks import _torch_private as private
from amp_checks.audit.training import Training

_FLOATING = (torch.float16, torch.bfloat16, torch.float32)
_CONVERSIONS = {Tensor.float, Tensor.half, Tensor.bfloat16}
_ENGINE = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_RANDOM_LIKE = {torch.rand_like, torch.randn_like}
_RANDOM_IN_PLACE = {Tensor.normal_, Tensor.uniform_}
_SET_GRADIENT = Tensor.grad.__set__  # type: ignore[union-attr]
_SETTERS = {"__set__", "__get__", "__delete__"}


class DoubleMode(TorchFunctionMode):
    """What float64 makes of each call."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _SETTERS or func in _ENGINE:
            if func == _SET_GRADIENT and isinstance(args[1], Tensor):
                args = (args[0], args[1].to(args[0].dtype))
            return func(*args, **kwargs)
        if func in _CONVERSIONS:
            return args[0].double()
        if func in _RANDOM_LIKE:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        if func in _RANDOM_IN_PLACE and args[0].dtype is torch.float64:
            with torch.no_grad():
                drawn = func(
                    torch.empty(args[0].shape, dtype=torch.float32, device=args[0].device), *args[1:], **kwargs
                )
            return args[0].copy_(drawn)
        changes = name.endswith("_") and not name.endswith("__")
        if changes and isinstance(args[0], Tensor) and args[0].dtype in _FLOATING:
            # Written to in place: it keeps its dtype, and what is written must have it.
            return func(args[0], *[_as(value, args[0].dtype) for value in args[1:]], **kwargs)
        first = args[:1] if changes else ()
        rest = [_widen(value) for value in args[len(first) :]]
        out = func(*first, *rest, **{key: value if key == "out" else _widen(value) for key, value in kwargs.items()})
        if isinstance(out, Tensor) and out.dtype in _FLOATING and not changes and "out" not in kwargs:
            return out.double()
        return out


@contextmanager
def in_float64() -> Iterator[None]:
    """Run in float64 what runs inside, backward too: custom functions and hooks run user code in there."""
    owner, name = private.backward_engine()
    original = getattr(owner, name)
    mode = DoubleMode()

    def run(*args: Any, **kwargs: Any) -> Any:
        private.push_function_mode(mode)
        try:
            return original(*args, **kwargs)
        finally:
            private.pop_function_mode()

    setattr(owner, name, run)
    try:
        with mode:
            yield
    finally:
        setattr(owner, name, original)


def _widen(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _FLOATING else value
    if isinstance(value, Tensor):
        return value.double() if value.dtype in _FLOATING else value
    if type(value) in (list, tuple):
        return type(value)(_widen(item) for item in value)
    return value


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def widen(training: Training) -> Training:
    """The training with its models in float64, in place, and its batches in float64."""
    for module in training.modules().values():
        module.double()
    return dataclasses.replace(training, batches=[_widen_batch(batch) for batch in training.batches])


def _widen_batch(batch: Any) -> Any:
    if isinstance(batch, dict):
        return type(batch)((key, _widen_batch(value)) for key, value in batch.items())
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(_widen_batch(item) for item in batch)
    return _widen(batch)
