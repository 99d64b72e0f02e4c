"""How far from float64 an op of the table may be, forward and in its gradients, and why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

from amp_checks.torch_api.dtypes import LOW
from amp_checks.torch_api.numerics import Threshold, error_ratio, smallest

Pair = tuple[torch.Tensor, torch.Tensor]
"""A result and what it is in float64."""

_MEASURED = "benchmarks/ops_error.py"
_UNIT = "eps of the dtype in which the op ran, times the largest magnitude of the float64 result"
_TYPICAL = "eps of the dtype in which the op ran, times the float64 result: root mean squares over all draws and values"
_WORST = "the same of each value by itself, over all draws; the largest"


def _bound(value: float, unit: str, *, healthy: str, weakest: str) -> Threshold:
    return Threshold(value=value, unit=unit, healthy=healthy, weakest_mutant=weakest, measured=_MEASURED)


_PASSED_OFF = "TODO"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of what ran in 16 bits: on the error over all its values, and on that of each value."""

    typical: Threshold
    worst: Threshold


def _bounds(typical: float, worst: float, *, healthy: tuple[str, str]) -> Bounds:
    return Bounds(
        typical=_bound(typical, _TYPICAL, healthy=healthy[0], weakest=_PASSED_OFF),
        worst=_bound(worst, _WORST, healthy=healthy[1], weakest=_PASSED_OFF),
    )


SIXTEEN_BITS: dict[str, tuple[Bounds, Bounds]] = {
    "rounding": (
        _bounds(1.1, 1.75, healthy=("", "")),
        _bounds(1.2, 2.25, healthy=("", "")),
    ),
    "cancelling": (
        _bounds(1.1, 1.75, healthy=("", "")),
        _bounds(1.5, 5.0, healthy=("", "")),
    ),
    "cell": (
        _bounds(1.1, 2.5, healthy=("", "")),
        _bounds(2.0, 3.0, healthy=("", "")),
    ),
    "chain": (
        _bounds(1.5, 5.0, healthy=("", "")),
        _bounds(1.5, 3.0, healthy=("", "")),
    ),
}
"""Kind of op -> its bounds where it runs in float16 or bfloat16, forward and of gradients."""

_LOWERED = "inputs rounded to float16 where float32 was due: median 1807, over this bound for 93 of the CPU's 95 ops"

SINGLE: dict[str, tuple[Threshold, Threshold]] = {
    "rounding": (
        _bound(16.0, _UNIT, healthy="up to 3.6", weakest=_LOWERED),
        _bound(32.0, _UNIT, healthy="up to 9.1", weakest=_LOWERED),
    ),
    "decomposition": (
        _bound(100.0, _UNIT, healthy="up to 12.2", weakest=_LOWERED),
        _bound(200.0, _UNIT, healthy="up to 18.4", weakest=_LOWERED),
    ),
}
"""Kind of op -> its bounds where it runs in float32, forward and of gradients.

``decomposition``: gaps and condition numbers of the matrix multiply the rounding.
"""


def judged(
    pairs: Sequence[Pair], *, unit: torch.dtype, noise: str, gradient: bool
) -> Iterator[tuple[str, float, Threshold]]:
    """The errors of one output over several draws: where each is, how large, and its bound."""
    if unit in LOW:
        bounds = SIXTEEN_BITS.get(noise, SIXTEEN_BITS["rounding"])[gradient]
        typical, worst = errors_of(pairs, unit=unit)
        yield "", typical, bounds.typical
        yield " at its worst place", worst, bounds.worst
    else:
        largest = max(error_of(actual, reference, run_dtype=unit) for actual, reference in pairs)
        yield "", largest, SINGLE.get(noise, SINGLE["rounding"])[gradient]


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a complex one as pairs of reals, so that one measure serves both."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def error_of(actual: torch.Tensor, reference: torch.Tensor, *, run_dtype: torch.dtype) -> float:
    """`numerics.error_ratio`, for complex tensors too; whole-number outputs must be equal."""
    if not (actual.is_floating_point() or actual.is_complex()):
        return 0.0 if torch.equal(actual.cpu(), reference.cpu()) else math.inf
    return error_ratio(as_real(actual), as_real(reference), run_dtype=run_dtype)


_FLOOR = 1 / 4
"""Part of the mean square of all values that is added to that of each: where a result cancels, it may be near zero."""


def errors_of(pairs: Sequence[Pair], *, unit: torch.dtype) -> tuple[float, float]:
    """The error over all draws and values, and that of the worst place, its values taken over all draws.

    ``rms(actual - reference) / (eps(unit) * rms(reference))``, each draw in units of its own ``rms(reference)``: draws
    count alike. Half the distance between the numbers nearest to zero is no error. Infinite where shapes differ, whole
    numbers, or the places of what is not finite.
    """
    spacing = smallest(unit)
    wrong: torch.Tensor | float = 0.0
    right: torch.Tensor | float = 0.0
    for actual, reference in pairs:
        # Shapes, whole numbers, NaN, infinities, and a reference that is zero.
        if math.isinf(error_of(actual, reference, run_dtype=unit)):
            return math.inf, math.inf
        if not (actual.is_floating_point() or actual.is_complex()) or not actual.numel():
            continue
        out, ref = (as_real(tensor.detach().cpu()).double() for tensor in (actual, reference))
        finite = ref.isfinite()
        out, ref = out.where(finite, 0.0), ref.where(finite, 0.0)
        scale = ref.square().mean()
        if scale:
            wrong = wrong + ((out - ref).abs() - spacing / 2).clamp(min=0).square() / scale
            right = right + ref.square() / scale
    if isinstance(wrong, float) or isinstance(right, float):
        return 0.0, 0.0
    eps, mean = torch.finfo(unit).eps, right.mean()
    typical = (wrong.mean() / mean).sqrt() / eps
    worst = (wrong / (right + _FLOOR * mean)).amax().sqrt() / eps
    return typical.item(), worst.item()
