"""Arguments of ``GradScaler.scale``, by name, and results as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from amp_checks.torch_api import numerics

Make = Callable[..., torch.Tensor]


class Pair(NamedTuple):
    """A named tuple of tensors."""

    first: torch.Tensor
    second: torch.Tensor


def _vector(dtype: torch.dtype) -> Callable[[Make], torch.Tensor]:
    return lambda make: make([1, -2], dtype=dtype)


def _scalar(dtype: torch.dtype) -> Callable[[Make], torch.Tensor]:
    return lambda make: make(1, dtype=dtype)


_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)

BUILDERS: dict[str, Callable[[Make], Any]] = {
    **{f"{numerics.dtype_name(dtype)} vector": _vector(dtype) for dtype in _DTYPES},
    **{f"{numerics.dtype_name(dtype)} scalar": _scalar(dtype) for dtype in _DTYPES},
    "list": lambda make: [make(1.0), make([2.0], dtype=torch.float64)],
    "tuple": lambda make: (make(1.0), make([2.0], dtype=torch.float64)),
    "nested": lambda make: [(make(1.0), [make(2.0)]), make(3.0)],
    "generator": lambda make: (make(value) for value in (1.0, 2.0)),
    "unread generator": lambda make: (make(value) for value in (1.0, 2.0)),
    "empty list": lambda _: [],
    "namedtuple": lambda make: Pair(make(1.0), make(2.0)),
    "string": lambda _: "loss",
    "dict": lambda make: {"loss": make(1.0)},
    "number": lambda _: 1.0,
    "none": lambda _: None,
    "list of numbers": lambda _: [1.0, 2.0],
}
"""Name -> builds it; ``make(data, dtype=...)`` is `torch.tensor` on the backend's device."""


def describe(result: Any, *, read: bool = True) -> str:
    """``list(float32 8.0, float64 [16.0])``; an iterator that is not to be read is named by its type alone."""
    if isinstance(result, torch.Tensor):
        return f"{numerics.dtype_name(result.dtype)} {result.tolist()}"
    name = type(result).__name__
    if not read and not isinstance(result, list | tuple):
        return name
    return f"{name}({', '.join(map(describe, result))})"
