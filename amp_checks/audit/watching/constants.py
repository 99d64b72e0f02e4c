"""Numbers that a program writes and a 16-bit dtype does not have: ``1e-8``, ``1 - 1e-6``, ``-1e9``."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from amp_checks.torch_api.dtypes import LOW

_GUARDS = {
    f"aten::{name}{suffix}"
    for name in ("add", "sub", "rsub", "clamp", "clamp_min", "clamp_max")
    for suffix in ("", "_")
}
_OVERFLOWING = {
    f"aten::{name}" for name in ("add", "add_", "sub", "mul", "mul_", "where", "masked_fill", "masked_fill_")
}
CHECKED = _GUARDS | _OVERFLOWING
"""Ops whose constants are looked at."""


@functools.lru_cache(maxsize=4096)
def rounded(constant: float, dtype: torch.dtype) -> float:
    """The constant in that dtype."""
    return torch.tensor(constant, dtype=torch.float64).to(dtype).item()


def overflowed(constant: Any, dtype: torch.dtype) -> bool:
    """Whether a finite number is infinite in that 16-bit dtype."""
    return isinstance(constant, float) and math.isfinite(constant) and math.isinf(rounded(constant, dtype))


def lost(op: str, args: tuple[Any, ...], out: Any) -> tuple[float, float, torch.dtype] | None:
    """A finite constant that the 16-bit operand's dtype lacks, what it becomes, that dtype; None where nothing of note.

    An additive guard or a bound that becomes 0, a bound that becomes 1, and anything that becomes infinite. ``mul``
    computes in float32: a positive factor, a scale, is lost where it makes an infinity; a negative one is a mask's.
    """
    dtype = next((value.dtype for value in args if isinstance(value, torch.Tensor) and value.dtype in LOW), None)
    if dtype is None or any(_is_wider(value) for value in args):
        return None
    if not isinstance(out, torch.Tensor) or out.dtype not in LOW:
        return None  # two tensors without dimensions: the wider one decides, as of a 16-bit loss and its scale
    for value in args[1:]:
        constant = _constant(value)
        if constant is None or constant == 0.0 or not math.isfinite(constant):
            continue
        becomes = rounded(constant, dtype)
        is_scale = op in ("aten::mul", "aten::mul_") and constant > 0.0
        if (
            (op in _GUARDS and becomes == 0.0)
            or ("clamp" in op and becomes == 1.0 and constant != 1.0)
            or (op in _OVERFLOWING and math.isinf(becomes) and not (is_scale and bool(out.isfinite().all())))
        ):
            return constant, becomes, dtype
    return None


def _is_wider(value: Any) -> bool:
    """A tensor operand with dimensions decides the dtype of the result: a wider one keeps the constant."""
    return (
        isinstance(value, torch.Tensor) and value.dim() > 0 and value.dtype.itemsize > 2 and value.is_floating_point()
    )


def _constant(value: Any) -> float | None:
    if isinstance(value, float):
        return value
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in (torch.float32, torch.float64):
        # Python numbers arrive as tensors of no dimension, always on the CPU: reading one waits for no device.
        return value.item() if value.device.type == "cpu" and not value.requires_grad else None
    return None
