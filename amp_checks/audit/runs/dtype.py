"""A program computed in a higher precision: lower ones that it names are upcast, its random numbers stay.

In float64, float32 is lower too; in float32, only what the program casts to 16 bits explicitly.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from amp_checks.audit.case import Training
from amp_checks.audit.runs.change import Change
from amp_checks.audit.watching.state import around
from amp_checks.audit.watching.watch import Watch
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches

_WIDER = {
    torch.float32: {
        torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64,
    },
    torch.float64: {
        torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
        torch.complex32: torch.complex128, torch.complex64: torch.complex128,
    },
}  # fmt: skip
"""What each lower dtype becomes, by the dtype that is computed in."""
_CONVERSIONS = {Tensor.float, Tensor.half, Tensor.bfloat16}
_ENGINE = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_RANDOM_LIKE = {torch.rand_like, torch.randn_like}
_RANDOM = {torch.rand, torch.randn, torch.randint, torch.normal}
_RANDOM_IN_PLACE = {Tensor.normal_, Tensor.uniform_}
_SET_GRADIENT = Tensor.grad.__set__  # type: ignore[union-attr]
_AS_THEY_ARE: tuple[tuple[Any, str], ...] = (
    # Its kernels take float32 alone.
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "unscale_"),
    (torch.amp.GradScaler, "_check_inf_per_device"),
    # A tensor over bytes that were written before, by a worker or to a file: in another dtype it would misread them.
    (torch._utils, "_rebuild_tensor"),  # noqa: SLF001 - what torch.load and worker processes have in common
)
"""Functions of torch that compute in the dtypes they ask for."""
_SETTERS = {"__set__", "__get__", "__delete__"}


class HigherPrecisionMode(TorchFunctionMode):
    """What float32 or float64 makes of each call."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.wider = dtype, _WIDER[dtype]
        self._process = os.getpid()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if os.getpid() != self._process:  # a worker that was forked prepares data, as it does without this mode
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _SETTERS or func in _ENGINE:
            if func == _SET_GRADIENT and isinstance(args[1], Tensor):
                args = (args[0], args[1].to(args[0].dtype))
            return func(*args, **kwargs)
        if func in _CONVERSIONS:
            return args[0].to(self.dtype)
        if func in _RANDOM | _RANDOM_LIKE and kwargs.get("dtype") in self.wider:
            return _upcast(func(*args, **kwargs), self.dtype)  # in another dtype it would draw other numbers
        if func in _RANDOM_LIKE:
            return func(*args, **{**kwargs, "dtype": torch.float32}).to(self.dtype)
        if func in _RANDOM_IN_PLACE and args[0].dtype is self.dtype:
            with torch.no_grad():
                drawn = func(
                    torch.empty(args[0].shape, dtype=torch.float32, device=args[0].device), *args[1:], **kwargs
                )
            return args[0].copy_(drawn)
        changes = name.endswith("_") and not name.endswith("__")
        if changes and isinstance(args[0], Tensor) and args[0].dtype in self.wider:
            # Written to in place: it keeps its dtype, and what is written must have it.
            return func(args[0], *[_as(value, args[0].dtype) for value in args[1:]], **kwargs)
        first = args[:1] if changes else ()
        rest = [_upcast(value, self.dtype) for value in args[len(first) :]]
        named = {key: value if key == "out" else _upcast(value, self.dtype) for key, value in kwargs.items()}
        out = func(*first, *rest, **named)
        kept = changes or "out" in kwargs or not isinstance(out, Tensor)
        return out if kept else _upcast(out, self.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Compute(Change):
    """Computed in float32 or float64: the models and batches, and whatever the program casts down."""

    words: ClassVar[str] = "in {dtype}"
    dtype: torch.dtype

    def prepared(self, training: Training) -> Training:
        """The training with its models in that dtype, in place, and its batches."""
        for module in training.modules().values():
            _convert(module, self.dtype)
        batches: Any = _Batches(training.batches, self.dtype)
        return dataclasses.replace(training, batches=batches)

    @contextmanager
    def around_loop(self, watch: Watch) -> Iterator[None]:
        """Backward too: custom functions and hooks run user code in there."""
        del watch
        mode = HigherPrecisionMode(self.dtype)

        def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            private.push_function_mode(mode)
            try:
                return original(*args, **kwargs)
            finally:
                private.pop_function_mode()

        with Patches() as patches:
            patches.replace(*private.backward_engine(), around(run))
            for owner, name in _AS_THEY_ARE:
                patches.replace(owner, name, around(_as_it_is))
            with mode:
                yield


def _convert(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """``module.to(dtype)``, in place, which would make real numbers of complex ones."""
    parameters = [(one, one.data) for one in module.parameters() if one.is_complex()]
    buffers = [
        (owner, name, value)
        for owner in module.modules()
        for name, value in owner.named_buffers(recurse=False)
        if value.is_complex()
    ]
    module.to(dtype)
    for parameter, was in parameters:
        parameter.data = _upcast(was, dtype)
    for owner, name, value in buffers:
        setattr(owner, name, _upcast(value, dtype))


def _as_it_is(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with private.no_function_modes():
        return original(*args, **kwargs)


def _upcast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.dtype):
        return _WIDER[dtype].get(value, value)
    if isinstance(value, Tensor):
        return value.to(_WIDER[dtype][value.dtype]) if value.dtype in _WIDER[dtype] else value
    if type(value) in (list, tuple):
        return type(value)(_upcast(item, dtype) for item in value)
    return value


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class _Batches:
    """Batches, upcast as they are asked for: a loader draws when it draws in the run that is compared."""

    def __init__(self, batches: Any, dtype: torch.dtype) -> None:
        self._batches, self._dtype = batches, dtype

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return (_upcast_batch(batch, self._dtype) for batch in self._batches)


def _upcast_batch(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, dict):
        return type(batch)((key, _upcast_batch(value, dtype)) for key, value in batch.items())
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(_upcast_batch(item, dtype) for item in batch)
    return _upcast(batch, dtype)
