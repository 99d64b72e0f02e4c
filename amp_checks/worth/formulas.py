"""FLOPs of the products that matrix units compute, from the shapes of their arguments; all other ops count none.

A multiplication and the addition of its result are two FLOPs. A product of (m, k) and (k, n) is 2 m k n; a convolution
is the product of each output position with the weight; attention is its two products, and five in backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

MULTIPLE = 8
"""Elements of 16 bits in the 16 bytes that matrix units load at a time: leading dimensions should be multiples."""


def _mm(a: Tensor, b: Tensor) -> int:
    return 2 * a.shape[0] * a.shape[1] * b.shape[1]


def _bmm(a: Tensor, b: Tensor) -> int:
    return 2 * a.shape[0] * a.shape[1] * a.shape[2] * b.shape[2]


def _mv(a: Tensor, b: Tensor) -> int:
    del b
    return 2 * a.shape[0] * a.shape[1]


def _linear(x: Tensor, weight: Tensor) -> int:
    return 2 * x.numel() * weight.shape[0]


def _convolution(args: tuple[Any, ...], out: Any) -> int:
    x, weight = args[0], args[1]
    transposed = bool(args[6])
    # Each position on the side of the convolution that is not summed over meets the weight once.
    positions = x if transposed else out
    return int(2 * positions.shape[0] * math.prod(positions.shape[2:]) * weight.numel())


def _convolution_backward(args: tuple[Any, ...]) -> int:
    grad, x, weight, transposed, mask = args[0], args[1], args[2], bool(args[7]), args[10]
    positions = x if transposed else grad
    once = int(2 * positions.shape[0] * math.prod(positions.shape[2:]) * weight.numel())
    return once * (bool(mask[0]) + bool(mask[1]))


def _attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    batch, heads, length, width = query.shape
    return int(2 * batch * heads * length * key.shape[2] * (width + value.shape[3]))


def _attention_backward(query: Tensor, key: Tensor, value: Tensor) -> int:
    batch, heads, length, width = query.shape
    # The scores once more; gradients of value and of the scores over its width, of query and key over theirs.
    return 2 * batch * heads * length * key.shape[2] * (3 * width + 2 * value.shape[3])


_FORMULAS: dict[str, Callable[[tuple[Any, ...], Any], int]] = {
    "mm": lambda args, _: _mm(args[0], args[1]),
    "addmm": lambda args, _: _mm(args[1], args[2]),
    "_addmm_activation": lambda args, _: _mm(args[1], args[2]),
    "bmm": lambda args, _: _bmm(args[0], args[1]),
    "baddbmm": lambda args, _: _bmm(args[1], args[2]),
    "mv": lambda args, _: _mv(args[0], args[1]),
    "addmv": lambda args, _: _mv(args[1], args[2]),
    "linear": lambda args, _: _linear(args[0], args[1]),
    "convolution": _convolution,
    "convolution_backward": lambda args, _: _convolution_backward(args),
    **{
        name: lambda args, _: _attention(*args[:3])
        for name in (
            "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        )
    },
    **{
        name: lambda args, _: _attention_backward(*args[1:4])
        for name in (
            "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
        )
    },
}  # fmt: skip


def flops(base: str, args: tuple[Any, ...], out: Any) -> int:
    """FLOPs of one call of an op, ``aten::mm``; 0 of an op that is no product."""
    formula = _FORMULAS.get(base.removeprefix("aten::"))
    return formula(args, out) if formula is not None else 0


def odd_dimension(base: str, args: tuple[Any, ...], out: Any) -> int | None:
    """The first leading dimension of a product that is no multiple of `MULTIPLE`; None where all are, or of no product.

    Of matrices it is the distance of neighbouring rows, or columns, in memory; of a convolution the channels.
    """
    name = base.removeprefix("aten::")
    if name not in _FORMULAS:
        return None
    if name.startswith("convolution"):
        weight = args[2 if name.endswith("backward") else 1]
        sizes = list(weight.shape[:2])
    else:
        operands = [item for item in (*args, out) if isinstance(item, Tensor) and item.dim() >= 2][-3:]
        if name.startswith("_scaled"):
            operands = [item for item in args[:4] if isinstance(item, Tensor) and item.dim() == 4]
            sizes = [item.shape[-1] for item in operands]
        else:
            sizes = [size for item in operands for size in _leading(item)]
    return next((size for size in sizes if size % MULTIPLE), None)


def _leading(matrix: Tensor) -> list[int]:
    """The step between rows or columns; a matrix of one row or column has none."""
    rows, columns = matrix.shape[-2:]
    first, second = matrix.stride()[-2:]
    if rows == 1 or columns == 1:
        return []
    return [first] if second == 1 else [second] if first == 1 else [first, second]
