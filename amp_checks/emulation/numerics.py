"""Float32 inside: a product in a low dtype is computed in float32 and its result rounded once.

Nearer to what matrix units do than the CPU's own half kernels, and several times faster. Autograd records the float32
op between two casts, so gradients are computed in float32 and rounded once to the low dtype, as the casts' own
gradients. What the op saves for backward goes through hooks that keep the low-precision original in place of its
widened copy: the bytes saved are those that the op itself would save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import LOW

_aten = torch.ops.aten

FLOAT32_OPS = frozenset(
    {
        getattr(getattr(_aten, name), overload)
        for name in (
            "mm mv bmm addmm addmv addbmm baddbmm matmul linear einsum dot addr chain_matmul linalg_multi_dot "
            "convolution _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d "
            "scaled_dot_product_attention"
        ).split()
        for overload in ("default", "input")
        if overload in getattr(_aten, name).overloads()
    }
)
"""Products, convolutions and attention; in-place and ``out=`` overloads run in the CPU's own kernels."""

_ATTENTION = _aten.scaled_dot_product_attention.default


def applies(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all floating tensors of the op are in one low dtype: then it can run in float32 inside.

    Mixed dtypes are left to the op's own kernel, which refuses them.
    """
    found: torch.dtype | None = None
    for tensor in _tensors((*args, *kwargs.values()) if kwargs else args):
        dtype = tensor.dtype
        if dtype is torch.bool:
            continue
        if found is None:
            if dtype not in LOW:
                return False
            found = dtype
        elif dtype is not found:
            return False
    return found is not None


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op to which `applies` says yes in float32, and round its result."""
    hooked = torch.is_grad_enabled() and private.saved_tensors_hooks_allowed()
    saver = _Saver(hooked=hooked, keeps_statistics=op is _ATTENTION)
    wide = [saver.widen(value) for value in args]
    named = {name: saver.widen(value) for name, value in kwargs.items()} if kwargs else kwargs
    dtype = saver.dtype
    if not saver.needed:
        return op(*wide, **named).to(dtype)
    saver.outer = private.top_saved_tensors_hooks()
    private.push_saved_tensors_hooks(saver.pack, _unpack)
    try:
        out = op(*wide, **named)
    finally:
        private.pop_saved_tensors_hooks()
    low = out.to(dtype)
    saver.finish(out, low)
    return low


class _Low:
    """A tensor saved in the low dtype: refused when it was changed in place since, widened when it is used.

    Where the user has hooks of their own, they are given the low-precision tensor.
    """

    __slots__ = ("outer", "saved", "version")

    saved: Any

    def __init__(self, tensor: Tensor, outer: Hooks | None) -> None:
        self.outer = outer
        if outer is None:
            self.saved = tensor
            self.version = tensor._version
        else:
            self.saved = outer[0](tensor)

    def unpack(self) -> Tensor:
        if self.outer is not None:
            tensor: Tensor = self.outer[1](self.saved)
            return tensor.float()
        if self.saved._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.saved.type()} {list(self.saved.shape)}] is at version {self.saved._version}; "
                f"expected version {self.version} instead."
            )
        return self.saved.float()  # type: ignore[no-any-return]


class _Kept:
    """A tensor saved as it is, through the user's hooks."""

    __slots__ = ("outer", "saved")

    def __init__(self, tensor: Tensor, outer: Hooks) -> None:
        self.outer = outer
        self.saved = outer[0](tensor)

    def unpack(self) -> Tensor:
        found: Tensor = self.outer[1](self.saved)
        return found


class _Awaited:
    """The op's own float32 result, saved before it was rounded: it becomes the rounded result when that is known."""

    __slots__ = ("found", "wide")

    def __init__(self, wide: Tensor) -> None:
        self.wide: Tensor | None = wide
        self.found: _Low | None = None

    def unpack(self) -> Tensor:
        if self.found is not None:
            return self.found.unpack()
        assert self.wide is not None
        return self.wide


Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


def _unpack(packed: Any) -> Tensor:
    return packed if isinstance(packed, Tensor) else packed.unpack()


class _Saver:
    """Chooses what one op saves for backward."""

    __slots__ = ("_awaited", "_originals", "dtype", "hooked", "keeps_statistics", "needed", "outer")

    dtype: torch.dtype

    def __init__(self, *, hooked: bool, keeps_statistics: bool) -> None:
        self.hooked = hooked
        self.keeps_statistics = keeps_statistics
        self.needed = False
        self.outer: Hooks | None = None
        self._originals: dict[int, tuple[Tensor, Tensor]] = {}
        self._awaited: list[_Awaited] = []

    def widen(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.dtype is torch.bool:
                return value
            self.dtype = value.dtype
            wide = value.float()
            if self.hooked:
                self.needed = self.needed or wide.requires_grad
                self._originals[wide.data_ptr()] = (wide, value)
            return wide
        if isinstance(value, list | tuple):
            return [self.widen(item) for item in value]
        return value

    def pack(self, saved: Tensor) -> Any:
        if saved.dtype is not torch.float32:
            return saved if self.outer is None else _Kept(saved, self.outer)
        known = self._originals.get(saved.data_ptr())
        if known is not None:
            return _Low(_like(saved, *known), self.outer)
        if self.keeps_statistics and saved.ndim == 3:  # attention's log-sum-exp is float32 in any dtype
            return saved if self.outer is None else _Kept(saved, self.outer)
        if self.keeps_statistics:
            awaited = _Awaited(saved)
            self._awaited.append(awaited)
            return awaited
        return _Low(saved.to(self.dtype), self.outer)

    def finish(self, wide: Tensor, low: Tensor) -> None:
        """The rounded result is known: what was saved of the op's own results becomes low."""
        for awaited in self._awaited:
            saved = awaited.wide
            assert saved is not None
            own = saved.data_ptr() == wide.data_ptr() and saved.numel() == wide.numel()
            kept = _like(saved, wide, low) if own else saved.to(self.dtype)
            awaited.found, awaited.wide = _Low(kept, self.outer), None


def _like(saved: Tensor, wide: Tensor, low: Tensor) -> Tensor:
    """The part of ``low`` that ``saved`` is of ``wide``: the same view where their layouts agree, else a copy."""
    if saved.shape == wide.shape and saved.stride() == wide.stride():
        return low.detach()
    if wide.stride() == low.stride():
        offset = saved.storage_offset() - wide.storage_offset() + low.storage_offset()
        return low.detach().as_strided(saved.shape, saved.stride(), offset)
    return saved.to(low.dtype)
