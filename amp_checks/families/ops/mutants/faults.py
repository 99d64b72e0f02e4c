"""Ways to break an autocast rule, a kernel, or a region, one at a time; each is undone on exit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves

from amp_checks.families.ops.entry import overload
from amp_checks.families.ops.explicit import CASTABLE
from amp_checks.families.ops.inputs import map_leaves
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend

Plant = Callable[[Backend], AbstractContextManager[Backend]]
Rule = Callable[[Backend], Callable[..., Any] | None]
"""From a backend to the faulty kernel of an op at that backend's autocast key; None: no kernel."""


def with_rule(op: str, rule: Rule) -> Plant:
    """The autocast rule of an op replaced by a faulty one."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        with private.kernel(op, private.autocast_key(backend.device_type), rule(backend)):
            yield backend

    return plant


def removed(_: Backend) -> None:
    """No rule."""


def casting_to(op: str, dtype: Callable[[Backend], torch.dtype]) -> Rule:
    """A rule that casts every tensor which autocast may touch to one dtype."""

    def rule(backend: Backend) -> Callable[..., Any]:
        target, call = dtype(backend), _below_autocast(op, backend)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            return call(*cast(args, target), **cast(kwargs, target))

        return kernel

    return rule


def cast(structure: Any, target: torch.dtype) -> Any:
    """The structure with each tensor that autocast may touch in that dtype."""
    return map_leaves(lambda t: t.to(target) if t.dtype in CASTABLE else t, structure, torch.Tensor)


def low(backend: Backend) -> torch.dtype:
    return backend.low_dtype


def float32(_: Backend) -> torch.dtype:
    return torch.float32


def other_low(backend: Backend) -> torch.dtype:
    return torch.bfloat16 if backend.low_dtype is torch.float16 else torch.float16


def _below_autocast(op: str, backend: Backend) -> Callable[..., Any]:
    target, key = overload(op), private.autocast_key(backend.device_type)

    def call(*args: Any, **kwargs: Any) -> Any:
        with private.excluding(key):
            return target(*args, **kwargs)

    return call


def lowering_then(op: str, spoil: Callable[[Any, tuple[Any, ...]], Any]) -> Rule:
    """The right rule of a ``lower_precision_fp`` op, its result (and its inputs) then spoilt."""

    def rule(backend: Backend) -> Callable[..., Any]:
        call = _below_autocast(op, backend)

        def kernel(*args: Any) -> Any:
            return spoil(call(*cast(args, backend.low_dtype)), args)

        return kernel

    return rule


def widened(result: torch.Tensor, _: tuple[Any, ...]) -> torch.Tensor:
    """The right values, in float32."""
    return result.float()


def last_bit_off(result: torch.Tensor, _: tuple[Any, ...]) -> torch.Tensor:
    """The largest value off by its last bit."""
    plain = result.detach()
    off = plain * torch.finfo(plain.dtype).eps
    return result + off.where(plain == plain.amax(), 0.0)


def first_input_doubled(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """The first input changed in place, after use."""
    with torch.no_grad():
        args[0].mul_(2)
    return result


def gradient_off(result: torch.Tensor, _: tuple[Any, ...]) -> torch.Tensor:
    """The right values, with a gradient that is too large by one unit of its last place."""
    extra = result * torch.finfo(result.dtype).eps
    return result + (extra - extra.detach())


def refusing(text: str) -> Rule:
    """A rule that raises, with that text."""

    def rule(_: Backend) -> Callable[..., Any]:
        def kernel(*_args: Any, **_kwargs: Any) -> Any:
            raise RuntimeError(text)

        return kernel

    return rule


def with_autocast(factory: Callable[[Backend], Any]) -> Plant:
    """Another factory of regions."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        yield dataclasses.replace(backend, autocast=factory(backend))

    return plant


@contextmanager
def low_gradients(backend: Backend) -> Iterator[Backend]:
    """Gradients come back in the low dtype."""
    honest = torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        return cast(honest(*args, **kwargs), backend.low_dtype)

    with mock.patch.object(torch.autograd, "grad", grad):
        yield backend


def casting_float64_too(op: str) -> Rule:
    """A rule that casts float64 to the low dtype, which autocast leaves alone."""

    def rule(backend: Backend) -> Callable[..., Any]:
        call = _below_autocast(op, backend)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            narrowed = map_leaves(lambda t: t.float() if t.dtype is torch.float64 else t, args, torch.Tensor)
            return call(*cast(narrowed, backend.low_dtype), **kwargs)

        return kernel

    return rule


def forcing_float32(op: str) -> Rule:
    """A rule that puts ``dtype=float32`` in the place of the user's own."""

    def rule(backend: Backend) -> Callable[..., Any]:
        call = _below_autocast(op, backend)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[-1], torch.dtype):
                args = args[:-1]
            return call(*args, **{**kwargs, "dtype": torch.float32})

        return kernel

    return rule


def promoting(op: str, *, widest: bool = True, refuses: bool = True) -> Rule:
    """``promote``, right or without one of its two halves: the widest dtype wins, another low dtype is refused."""

    def rule(backend: Backend) -> Callable[..., Any]:
        call = _below_autocast(op, backend)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            found = {leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)} & set(CASTABLE)
            if refuses and other_low(backend) in found:
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
            target = torch.float32 if widest and torch.float32 in found else backend.low_dtype
            return call(*cast(args, target), **kwargs)

        return kernel

    return rule


def casting_out_form(op: str) -> Rule:
    """A rule for an ``out=`` form, which should have none: its result is computed in the low dtype."""

    def rule(backend: Backend) -> Callable[..., Any]:
        call = _below_autocast(op, backend)

        def kernel(*args: Any, out: torch.Tensor) -> Any:
            return out.copy_(call(*cast(args, backend.low_dtype)))

        return kernel

    return rule


def never_disabled(backend: Backend) -> Any:
    """Regions that stay on where ``enabled=False`` is asked for."""

    def region(device_type: str, **kwargs: Any) -> Any:
        return backend.autocast(device_type, **{**kwargs, "enabled": True})

    return region
