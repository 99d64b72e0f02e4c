"""Checks of the range table: AMP is safe where its row says so, and nowhere does worse than it says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from amp_checks.core import Check, Finding, bounded, exact
from amp_checks.families.ranges import probe as ranges
from amp_checks.families.ranges.inputs import (
    FLOAT32,
    INACCURATE,
    NAN,
    OVERFLOWS,
    SAFE,
    UNDERFLOWS,
    Edge,
    Limits,
    RangeCase,
)
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import Threshold

NOT_FINITE = (OVERFLOWS, NAN)
WRONG = (UNDERFLOWS, INACCURATE)

SHARP = Threshold(
    value=0.15,
    unit="octaves between the measured and the stated magnitude, where the next one is not finite",
    healthy="up to 0.11 over all rows and default backends (mm in bfloat16)",
    weakest_mutant="exp2 of an input rounded to bfloat16: 0.42",
    measured="benchmarks/ranges_time.py; the mutant input-rounded-to-bfloat16",
)
SOFT = Threshold(
    value=1.5,
    unit="octaves between the measured and the stated magnitude, where the next one is finite and wrong",
    healthy="up to 0.95 over all rows and default backends (gradient of _convolution in float16)",
    weakest_mutant="layer norm with its variance in 16 bits: 7.4",
    measured="benchmarks/ranges_time.py; the mutant layer-norm-variance-in-16-bits",
)
"""Wider: where digits are lost gradually, the inputs' last bits decide; still less than a step of float16's grid."""

STATED = "its row"
ROUNDED = "nothing is stated: as far as the float64 result, rounded once to the dtype, is finite and within the bound"


def checks_for(_: RangeCase) -> Iterator[Check]:
    yield check_safe_range
    yield check_finite_inside
    yield check_zero_inputs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The range that a row claims for one direction on one backend, and why."""

    range: ranges.Range
    why: str


def claim(limits: Limits | None, ideal: ranges.Range) -> Claim:
    """What is stated, completed by what correct rounding gives."""
    if limits is None:
        return Claim(range=ideal, why=ROUNDED)
    if limits.nowhere:
        empty = ranges.Range(low=math.nan, high=math.nan, below=limits.nowhere, above=limits.nowhere)
        return Claim(range=empty, why=limits.why)
    low = limits.low or Edge(ideal.low, ideal.below)
    high = limits.high or Edge(ideal.high, ideal.above)
    return Claim(range=ranges.Range(low=low.at, high=high.at, below=low.gives, above=high.gives), why=limits.why)


def check_safe_range(case: RangeCase, backend: Backend) -> Iterator[Finding]:
    """The measured range of safe magnitudes is the one that the row claims, forward and backward, at both ends.

    On a device that is not the CPU, neither by kernel nor by emulation, a wider range is no fault: limits of kernels
    were measured on the CPU. On a processor that makes zero of subnormal numbers in bfloat16, ranges may end where that
    begins to count.
    """
    flushes = backend.dtype == "bfloat16" and not _wider_is_fine(backend) and ranges.flushes_subnormals()
    for direction, found in ranges.measure(case, backend).items():
        claimed = claim(case.stated(backend, direction), found.ideal)
        claimed = flushed(claimed, found.amp) if flushes else claimed
        yield from edges(
            direction,
            found.amp,
            claimed.range,
            why=f"{case.policy(backend.device_type)}; {claimed.why}",
            wider_is_fine=_wider_is_fine(backend),
        )


def flushed(claimed: Claim, found: ranges.Range) -> Claim:
    """The claim where subnormal numbers are zero: its lower end may be as high as `ranges.FLUSHED`."""
    low = min(found.low, ranges.FLUSHED)
    if not claimed.range.low < low or found.below not in WRONG:
        return claimed
    moved = dataclasses.replace(claimed.range, low=low, below=found.below)
    return Claim(range=moved, why=f"{claimed.why}; this processor makes zero of subnormal numbers in bfloat16")


def _wider_is_fine(backend: Backend) -> bool:
    return not backend.emulated and backend.device_type != "cpu"


def edges(
    direction: str, found: ranges.Range, claimed: ranges.Range, *, why: str, wider_is_fine: bool
) -> Iterator[Finding]:
    """Both ends of a measured range against those of the claimed one: where they are, and what lies beyond."""
    for end, what, other in (("low", "below", "smallest"), ("high", "above", "largest")):
        actual, expected = getattr(found, end), getattr(claimed, end)
        gives, stated = getattr(found, what), getattr(claimed, what)
        beyond = actual < expected if end == "low" else actual > expected
        wider = wider_is_fine and (beyond or claimed.empty)
        bound = SHARP if gives in NOT_FINITE or stated in NOT_FINITE else SOFT
        distance = ranges.agree(actual, expected)
        yield bounded(
            f"{direction}: {other} safe magnitude",
            ratio=0.0 if wider else distance,
            threshold=bound.value,
            why=why,
            actual=_shown(actual),
            expected=_shown(expected),
        )
        if not wider:
            yield exact(f"{direction}: {what} it", actual=gives, expected=_alike(stated, gives, distance), why=why)


def _shown(magnitude: float) -> float | str:
    return "nowhere" if math.isnan(magnitude) else magnitude


def _alike(stated: str, found: str, distance: float) -> str:
    """What is expected beyond an edge: the found word where it says the same as the stated one.

    Where float32 fails at the same magnitude, rounding decides which of the two fails first.
    """
    near = distance < SHARP.value and FLOAT32 in (stated, found)
    same = any(stated in words and found in words for words in (NOT_FINITE, WRONG))
    return found if near or same else stated


def check_finite_inside(case: RangeCase, backend: Backend) -> Iterator[Finding]:
    """With other inputs, at magnitudes all over the claimed range, AMP is finite where FP32 is.

    A row that is said to be safe nowhere must not be safe at any of them.
    """
    probe = ranges.Probe(case, backend, seed="other")
    wrong: dict[str, list[str]] = {}
    for magnitude in ranges.grid(backend.dtype)[:-1:2]:
        for direction, (amp, ideal) in probe.at(magnitude).items():
            found = wrong.setdefault(direction, [])
            if _breaks(case.stated(backend, direction), magnitude, amp, ideal):
                found.append(f"{magnitude:.3g} {amp}")
    for direction, found in wrong.items():
        limits = case.stated(backend, direction)
        never = limits is not None and bool(limits.nowhere)
        expected = "safe nowhere" if never else "finite"
        claimed = not (never and _wider_is_fine(backend))
        yield exact(
            f"{direction}: {expected if never else 'finite where FP32 is, within the safe range'}",
            actual=", ".join(found) or expected if claimed else expected,
            expected=expected,
            why=f"{case.policy(backend.device_type)}; other inputs than those that the range was measured with",
        )


def _breaks(limits: Limits | None, magnitude: float, amp: str, ideal: str) -> bool:
    """Whether what AMP gives at a magnitude breaks what the row claims: within its limits, a factor of two away."""
    if limits is None:
        return ideal == SAFE and amp in NOT_FINITE
    if limits.nowhere:
        return amp == SAFE
    low = limits.low.at * 2 if limits.low else 0.0
    high = limits.high.at / 2 if limits.high else math.inf
    return low <= magnitude <= high and ideal == SAFE and amp in NOT_FINITE


def check_zero_inputs(case: RangeCase, backend: Backend) -> Iterator[Finding]:
    """All-zero inputs give what FP32 gives for them: an eps that keeps it from 0 / 0 must not be lost in 16 bits."""
    for direction, (amp, ideal) in ranges.Probe(case, backend).at(0.0).items():
        reason = case.zero(backend, direction)
        fine = ideal != SAFE or amp == SAFE
        yield exact(
            f"{direction}: all-zero inputs",
            actual=amp,
            expected=amp if fine != bool(reason) else "unsafe" if fine else SAFE,
            why=reason or "FP32 gives something finite for them, or rounding it would not",
        )
