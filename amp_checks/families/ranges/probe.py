"""Ranges: the input magnitudes at which an op under AMP gives what float64 gives, measured.

At each magnitude the op is run three times on the same inputs, already rounded to the low dtype: under AMP, in float32
without it, and in float64. AMP is *safe* there when result and gradients are finite and within `BOUND` of float64. A
grid over the span of the dtype finds the longest run of safe magnitudes, and bisection its two edges.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from amp_checks.core import attempt
from amp_checks.families.ranges.inputs import (
    BACKWARD,
    END,
    FLOAT32,
    FORWARD,
    INACCURATE,
    NAN,
    OVERFLOWS,
    SAFE,
    UNDERFLOWS,
    Direction,
    RangeCase,
    led_by_one,
)
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import Threshold, randn

BOUND = Threshold(
    value=4.0,
    unit="eps of the low dtype, times the largest magnitude of the float64 result",
    healthy="up to 2.7 at magnitude 1, over all rows and default backends (gradient of logsumexp of 4096 in bfloat16)",
    weakest_mutant="exp2 of an input rounded to bfloat16: 16.5 at magnitude 15.9",
    measured="benchmarks/ranges_time.py; the mutant input-rounded-to-bfloat16",
)

SPANS: dict[str, tuple[int, int, int]] = {"float16": (-24, 15, 2), "bfloat16": (-126, 127, 8)}
"""Dtype -> exponents of the smallest and the largest power of two, and the grid's step in octaves.

float16: from its smallest subnormal, 6.0e-8, to its largest number, 65504. bfloat16: from its smallest normal number,
1.2e-38, to its largest, 3.4e38: it has the exponents of float32, which ends there too.
"""

FINE = 1.01
"""Bisection ends when the last safe and the first unsafe magnitude are nearer than this factor."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A measured interval of safe magnitudes.

    Attributes:
        low, high: smallest and largest; NaN where none is safe.
        below, above: what happens just outside: one of the words of this module.
    """

    low: float
    high: float
    below: str
    above: str

    @property
    def empty(self) -> bool:
        return math.isnan(self.low)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A direction of a row: what AMP gives, and what rounding the float64 result once would give."""

    amp: Range
    ideal: Range


Verdicts = dict[Direction, tuple[str, str]]
"""Direction -> what AMP and what correct rounding give at a magnitude."""


class Probe:
    """Runs a row at any magnitude on a backend; remembers what it gave."""

    def __init__(self, case: RangeCase, backend: Backend, *, seed: str = "") -> None:
        self.case = case
        self.backend = backend
        # Limits are stated of one pattern, which stays; other ones are drawn anew.
        self.patterns = [
            given.values(f"{case.name} {place} {seed}", salted=bool(seed)) for place, given in enumerate(case.inputs)
        ]
        self.seed = seed
        self._known: dict[float, Verdicts] = {}

    def rounded(self, magnitude: float) -> float:
        """The magnitude as the low dtype has it: the largest element of the scaled inputs."""
        return torch.tensor(magnitude, dtype=torch.float64).to(self.backend.low_dtype).item()

    def at(self, magnitude: float) -> Verdicts:
        """What AMP, and what correct rounding give at that magnitude."""
        if magnitude not in self._known:
            self._known[magnitude] = self._measure(magnitude)
        return self._known[magnitude]

    def inputs(self, magnitude: float) -> list[torch.Tensor]:
        """Inputs in the low dtype, on the CPU."""
        return [
            (pattern * magnitude if given.scaled else pattern).to(self.backend.low_dtype)
            for given, pattern in zip(self.case.inputs, self.patterns, strict=True)
        ]

    def _measure(self, magnitude: float) -> Verdicts:
        inputs = self.inputs(magnitude)
        amp = attempt(f"{self.case.name} at {magnitude:.3g}", self.under_amp, inputs)
        with private.no_function_modes():  # what AMP is compared with is no matter of an emulation's
            return self._judge(inputs, amp)

    def _judge(self, inputs: Sequence[torch.Tensor], amp: tuple[list[torch.Tensor], list[torch.Tensor]]) -> Verdicts:
        single = self.plain(inputs, torch.float32)
        exact = self.plain(inputs, torch.float64)
        found: Verdicts = {}
        for direction, (got, alone, reference) in zip(
            (FORWARD, BACKWARD), zip(amp, single, exact, strict=True), strict=True
        ):
            if direction == BACKWARD and not self.case.differentiable:
                continue
            rounded = [
                expected.to(self._result_dtype(tensor, direction))
                for expected, tensor in zip(reference, got, strict=True)
            ]
            found[direction] = judge(got, rounded, reference=reference, alone=alone, low=self.backend.low_dtype)
        return found

    def _result_dtype(self, result: torch.Tensor, direction: Direction) -> torch.dtype:
        """The dtype that limits a result: float32 where autocast must run the op in it, a gradient's is low."""
        if direction == BACKWARD:
            return self.backend.low_dtype
        return torch.float32 if self.case.runs_in_fp32(self.backend) else result.dtype

    def under_amp(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Results, and gradients of the inputs, of the op in a region whose float32 leaves are rounded before it."""
        leaves = self._leaves(inputs, torch.float32, device=self.backend.device_type)
        with self.backend.region():
            outputs = _floating(self.case.op(*(leaf.to(self.backend.low_dtype) for leaf in leaves)))
        return [out.detach().cpu() for out in outputs], self._gradients(outputs, leaves)

    def plain(
        self, inputs: Sequence[torch.Tensor], dtype: torch.dtype
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The same in another dtype on the CPU, without AMP; in float64 by the row's reference."""
        leaves = self._leaves(inputs, dtype, device="cpu")
        op = self.case.exact if dtype is torch.float64 and self.case.exact else self.case.op
        outputs = _floating(op(*leaves))
        return [out.detach() for out in outputs], self._gradients(outputs, leaves)

    def _leaves(self, inputs: Sequence[torch.Tensor], dtype: torch.dtype, *, device: str) -> list[torch.Tensor]:
        return [
            tensor.to(dtype=dtype, device=device).requires_grad_(given.grad)
            for tensor, given in zip(inputs, self.case.inputs, strict=True)
        ]

    def _gradients(self, outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        flowing = [out for out in outputs if out.requires_grad]
        if not wanted or not flowing:
            return []
        weights = [
            _weight(out.shape, number).to(device=out.device, dtype=out.dtype) for number, out in enumerate(flowing)
        ]
        found = torch.autograd.grad(flowing, wanted, weights, allow_unused=True)
        return [gradient.cpu() for gradient in found if gradient is not None]


@functools.cache
def _weight(shape: torch.Size, number: int) -> torch.Tensor:
    """What the gradient of an output is: fixed numbers up to 1, exact in every dtype, the first of them 1."""
    if not shape.numel():
        return torch.zeros(shape)
    return led_by_one(randn(*shape, seed=f"range weights {number}", salted=False).double()).bfloat16().float()


def _floating(given: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def judge(
    amp: Sequence[torch.Tensor],
    rounded: Sequence[torch.Tensor],
    *,
    reference: Sequence[torch.Tensor],
    alone: Sequence[torch.Tensor],
    low: torch.dtype,
) -> tuple[str, str]:
    """What became of what AMP gave, and of the rounded reference: `SAFE`, or what is wrong; `FLOAT32` for both where
    FP32 fails as well.

    Args:
        amp: what AMP gave.
        rounded: the reference rounded once.
        reference: the result in float64.
        alone: the result in float32, without AMP.
        low: the low dtype; its eps is the unit of `BOUND`.
    """
    scales = [_largest(tensor) for tensor in reference]
    unit = torch.finfo(low).eps

    def ratios(result: Sequence[torch.Tensor]) -> list[float]:
        return [_ratio(*three, unit) for three in zip(result, reference, scales, strict=True)]

    if not all(map(math.isfinite, scales)) or not all(ratio < BOUND.value for ratio in ratios(alone)):
        return FLOAT32, FLOAT32

    def verdict(result: Sequence[torch.Tensor]) -> str:
        found = ratios(result)
        wrong = [place for place, ratio in enumerate(found) if not ratio < BOUND.value]
        if not wrong:
            return SAFE
        if not all(bool(torch.isfinite(result[place]).all()) for place in wrong):
            return NAN if any(bool(torch.isnan(tensor).any()) for tensor in result) else OVERFLOWS
        return UNDERFLOWS if scales[wrong[0]] < torch.finfo(low).tiny else INACCURATE

    return verdict(amp), verdict(rounded)


def error(actual: torch.Tensor, reference: torch.Tensor, *, low: torch.dtype) -> float:
    """The error of a result in the unit of `BOUND`; the reference is finite."""
    return _ratio(actual, reference, _largest(reference), torch.finfo(low).eps)


def _largest(tensor: torch.Tensor) -> float:
    """The largest magnitude; NaN or infinity where there is one."""
    return tensor.abs().max().item() if tensor.numel() else 0.0


def _ratio(actual: torch.Tensor, reference: torch.Tensor, scale: float, unit: float) -> float:
    """`numerics.error_ratio` for a finite reference of that largest magnitude; NaN or infinity where ``actual`` is
    not finite. A few operations instead of twenty: it is asked thousands of times.
    """
    error = _largest(actual.double() - reference)
    if scale == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / scale / unit  # their product may underflow


def grid(dtype: str) -> list[float]:
    """Magnitudes over the span of a low dtype, in steps of a fixed factor; the last is its largest number."""
    first, last, step = SPANS[dtype]
    largest = float(torch.finfo(getattr(torch, dtype)).max)
    return [*(2.0**exponent for exponent in range(first, last + 1, step)), largest]


def measure(case: RangeCase, backend: Backend) -> dict[Direction, Measured]:
    """The safe ranges of a row on a backend, for each direction that it has.

    Raises:
        Raised: the op raised under AMP.
    """
    probe = Probe(case, backend)
    points = grid(backend.dtype)
    directions = tuple(probe.at(points[0]))
    return {
        direction: Measured(
            amp=longest_range(points, lambda m, d=direction: probe.at(m)[d][0], probe.rounded),  # type: ignore[misc]
            ideal=longest_range(points, lambda m, d=direction: probe.at(m)[d][1], probe.rounded),  # type: ignore[misc]
        )
        for direction in directions
    }


def longest_range(points: Sequence[float], verdict: Callable[[float], str], rounded: Callable[[float], float]) -> Range:
    """The longest run of safe points, its edges refined by bisection; its words for what lies outside."""
    first, last = _longest([verdict(point) == SAFE for point in points])
    if first > last:
        return Range(low=math.nan, high=math.nan, below=verdict(points[0]), above=verdict(points[-1]))
    low, below = points[first], END
    if first > 0:
        low, outside = _bisect(points[first], points[first - 1], verdict, rounded)
        below = verdict(outside)
    high, above = points[last], END
    if last < len(points) - 1:
        high, outside = _bisect(points[last], points[last + 1], verdict, rounded)
        above = verdict(outside)
    return Range(low=low, high=high, below=below, above=above)


def _longest(safe: Sequence[bool]) -> tuple[int, int]:
    best, start = (0, -1), 0
    for place, fine in enumerate([*safe, False]):
        if fine:
            continue
        if place - 1 - start > best[1] - best[0]:
            best = (start, place - 1)
        start = place + 1
    return best


def _bisect(
    safe: float, unsafe: float, verdict: Callable[[float], str], rounded: Callable[[float], float]
) -> tuple[float, float]:
    while max(safe / unsafe, unsafe / safe) > FINE:
        middle = rounded(math.sqrt(safe) * math.sqrt(unsafe))
        if middle in (safe, unsafe):
            break
        if verdict(middle) == SAFE:
            safe = middle
        else:
            unsafe = middle
    return safe, unsafe


@functools.cache
def flushes_subnormals() -> bool:
    """Whether products in bfloat16 make zero of subnormal results on this processor.

    oneDNN's kernels do where AVX-512 or AMX has instructions for bfloat16, as those instructions do; its others, and
    torch's own, do not.
    """
    tiny = torch.full((64, 64), torch.finfo(torch.bfloat16).tiny, dtype=torch.bfloat16)
    with private.no_function_modes(), torch.no_grad():
        return not bool((tiny @ (torch.eye(64) / 2).bfloat16()).any())


FLUSHED = torch.finfo(torch.bfloat16).tiny / (BOUND.value * torch.finfo(torch.bfloat16).eps)
"""From this magnitude of a bfloat16 result on, zeros in the place of its subnormal elements are within `BOUND`."""


def agree(one: float, other: float) -> float:
    """How far two edges lie apart, in octaves; 0 where both are NaN."""
    if math.isnan(one) or math.isnan(other):
        return 0.0 if math.isnan(one) and math.isnan(other) else math.inf
    return abs(math.log2(one / other))


def points_within(found: Range, count: int) -> Iterator[float]:
    """Magnitudes evenly spread, by ratio, over a range, its ends included."""
    for number in range(count):
        yield math.exp(math.log(found.low) + (math.log(found.high) - math.log(found.low)) * number / (count - 1))
