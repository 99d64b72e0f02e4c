"""Float32 inside: an op in a low dtype is computed in float32 and its result rounded once.

Nearer to what matrix units do than the CPU's own half kernels, and faster. What backward needs is saved in the low
dtype, as the op itself would save it, so that the bytes saved are those of the low dtype; gradients are rounded to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_LOW = (torch.float16, torch.bfloat16)

FLOAT32_OPS = frozenset(
    {
        _aten.linear.default,
        _aten.mm.default,
        _aten.bmm.default,
        _aten.addmm.default,
        _aten.baddbmm.default,
        _aten.matmul.default,
        _aten.convolution.default,
        _aten.conv1d.default,
        _aten.conv2d.default,
        _aten.conv3d.default,
    }
)


def applies(op: Any, args: tuple[Any, ...]) -> bool:
    """Whether the op runs in float32 inside: a product or convolution whose first tensor is in a low dtype."""
    return op in FLOAT32_OPS and bool(args) and isinstance(args[0], Tensor) and args[0].dtype in _LOW


class _Saver:
    """Saves the low-precision original of a tensor that was widened for one op, in place of the widened copy."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.originals: dict[int, tuple[Tensor, Tensor]] = {}

    def widen(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in _LOW:
            wide = value.float()
            self.originals[wide.data_ptr()] = (wide, value)
            return wide
        return value

    def pack(self, saved: Tensor) -> Any:
        if saved.dtype is not torch.float32:
            return saved
        found = self.originals.get(saved.data_ptr())
        if found is not None:
            wide, original = found
            if saved.shape == wide.shape and saved.stride() == wide.stride():
                return _Low(original.detach())
        return _Low(saved.to(self.dtype))

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        return packed.widen() if isinstance(packed, _Low) else packed  # type: ignore[no-any-return]


class _Low:
    """A saved tensor in the low dtype, refused when it was changed in place since."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version

    def widen(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a {self.tensor.dtype} tensor of shape {tuple(self.tensor.shape)} is at version "
                f"{self.tensor._version}; expected version {self.version} instead"
            )
        return self.tensor.float()


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the op in float32 and round its result to the dtype of its first tensor."""
    dtype = args[0].dtype
    saver = _Saver(dtype)
    wide = [saver.widen(value) for value in args]
    named = {name: saver.widen(value) for name, value in kwargs.items()}
    with torch.autograd.graph.saved_tensors_hooks(saver.pack, saver.unpack):
        out = op(*wide, **named)
    return out.to(dtype)
