"""Values that must be the same bit for bit, and in words how they are not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Finding, exact
from amp_checks.torch_api import numerics
from amp_checks.torch_api.dtypes import dtype_name

Bits = dict[str, Any]
"""Name -> a copy of a tensor, or a plain value."""


def same(subject: str, actual: Any, expected: Any, words: str = "the same bits", *, why: str) -> Finding:
    """A finding that two values are the same bit for bit, which ``words`` say."""
    return exact(subject, actual=difference(actual, expected) or words, expected=words, why=why)


def all_same(
    actual: Bits, expected: Bits, words: str = "the same bits", *, when: str = "", why: str
) -> Iterator[Finding]:
    """The same of each name; one that only one side has is a difference."""
    for name in sorted(actual.keys() | expected.keys()):
        yield same(f"{name} {when}".rstrip(), actual.get(name), expected.get(name), words, why=why)


def difference(actual: Any, expected: Any) -> str:
    """Empty where both are the same bit for bit, else the first difference in words, and a factor common to all."""
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        equal = type(actual) is type(expected) and bool(actual == expected)
        return "" if equal else f"{actual!r} instead of {expected!r}"
    if numerics.same_bits(actual, expected):
        return ""
    if actual.dtype is not expected.dtype or actual.shape != expected.shape:
        return f"{_kind(actual)} instead of {_kind(expected)}"
    for place, (one, other) in enumerate(zip(actual.flatten(), expected.flatten(), strict=True)):
        if not numerics.same_bits(one, other):
            first = f"{one.item():.6g} instead of {other.item():.6g} at element {place}"
            factor = _common_factor(actual, expected)
            return first if factor is None else f"{factor:g} times what it should be: {first}"
    return "other bits"


def _common_factor(actual: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The factor by which every element is off, exactly, where it is a power of two: a scale that was left on."""
    if not actual.is_floating_point() or not actual.isfinite().all() or not (expected != 0).all():
        return None
    factors = (actual.double() / expected.double()).unique()
    return factors.item() if len(factors) == 1 and math.frexp(factors.item())[0] == 0.5 else None


def _kind(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
