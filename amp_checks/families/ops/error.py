"""How far from float64 an op of the table may be, forward and in its gradients, and why."""

from __future__ import annotations

import dataclasses

import torch

from amp_checks.torch_api.dtypes import LOW
from amp_checks.torch_api.numerics import Threshold, error_ratio

_UNIT = "eps of the dtype in which the op ran, times the largest magnitude of the float64 result"
_MEASURED = "benchmarks/ops_error.py"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a kind of op: on its outputs, and on the gradients of its inputs."""

    forward: Threshold
    gradient: Threshold


def _bound(value: float, *, healthy: str, weakest: str) -> Threshold:
    return Threshold(value=value, unit=_UNIT, healthy=healthy, weakest_mutant=weakest, measured=_MEASURED)


_PASSED_OFF = "bfloat16 passed off as float16: over this bound for 24 of the 35 ops (forward)"
_LOWERED = "inputs rounded to float16 where float32 was due: median 1807, over this bound for 93 of the CPU's 95 ops"

SIXTEEN_BITS = Bounds(
    forward=_bound(2.0, healthy="up to 0.93", weakest=_PASSED_OFF),
    gradient=_bound(5.0, healthy="up to 1.8", weakest=_PASSED_OFF),
)
"""Of every op that runs in float16 or bfloat16, but for `CELL`."""
CELL = Bounds(
    forward=_bound(2.0, healthy="up to 1.6 over 300 seeds", weakest="bfloat16 passed off as float16: median 2.2"),
    gradient=_bound(10.0, healthy="up to 4.9 over 300 seeds", weakest="a gradient 2 % off: 20"),
)
"""Of recurrent cells: a dozen 16-bit ops in a row, whose biases get sums of gradients that may cancel."""

_ROUNDING = Bounds(
    forward=_bound(16.0, healthy="up to 3.6", weakest=_LOWERED),
    gradient=_bound(32.0, healthy="up to 9.1", weakest=_LOWERED),
)
BOUNDS: dict[str, Bounds] = {
    "rounding": _ROUNDING,
    "cell": _ROUNDING,
    "decomposition": Bounds(
        forward=_bound(100.0, healthy="up to 12.2", weakest=_LOWERED),
        gradient=_bound(200.0, healthy="up to 18.4", weakest=_LOWERED),
    ),
}
"""Kind of op that runs in float32 -> its bounds.

``decomposition``: gaps and condition numbers of the matrix multiply the rounding.
"""


def bounds_of(noise: str, ran_in: torch.dtype) -> Bounds:
    """The bounds of a kind of op in the dtype in which it ran."""
    if ran_in in LOW:
        return CELL if noise == "cell" else SIXTEEN_BITS
    return BOUNDS[noise]


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a complex one as pairs of reals, so that one measure serves both."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def error_of(actual: torch.Tensor, reference: torch.Tensor, *, run_dtype: torch.dtype) -> float:
    """`numerics.error_ratio`, for complex tensors too; whole-number outputs must be equal."""
    if not (actual.is_floating_point() or actual.is_complex()):
        return 0.0 if torch.equal(actual.cpu(), reference.cpu()) else float("inf")
    return error_ratio(as_real(actual), as_real(reference), run_dtype=run_dtype)
