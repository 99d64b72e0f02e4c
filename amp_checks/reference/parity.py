"""Does AMP train as well as FP32? An equivalence test on paired seeds, in the task's own unit of noise.

A pair is two runs with the same seed: same initial weights, batches and order. The unit is the standard
deviation of the FP32 results over seeds, so no task needs a constant of its own. The test is two one-sided
t-tests (Schuirmann 1987) on the paired differences: AMP is equivalent when the confidence interval of the
mean difference, at level ``1 - 2 * ALPHA``, lies wholly within plus and minus ``MARGIN`` units. Too few seeds
make the interval too wide, which is a verdict of its own.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Sequence

ALPHA = 0.05
"""Chance of calling AMP equivalent when its true mean difference is as large as the margin."""

MARGIN = 0.25
"""The largest mean difference that counts as none, in standard deviations of FP32 over seeds."""

FEWEST_SEEDS = 3
"""Fewer give no usable estimate of either spread."""


class Verdict(enum.StrEnum):
    """What an equivalence test says."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    TOO_FEW_SEEDS = "not enough seeds to tell"
    NOT_FINITE = "not finite"
    NO_SPREAD = "FP32 does not vary over seeds, so there is no unit"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The outcome of `compare`.

    Attributes:
        seeds: pairs compared.
        spread: standard deviation of the FP32 results over seeds: the unit of the other figures.
        difference: ``mean(AMP) - mean(FP32)``, in that unit.
        half_width: of the confidence interval of ``difference``, same unit.
        verdict: what follows for the margin given.
    """

    seeds: int
    spread: float
    difference: float
    half_width: float
    verdict: Verdict

    @property
    def ratio(self) -> float:
        """The end of the interval farthest from zero; AMP is equivalent when it is below the margin."""
        return abs(self.difference) + self.half_width

    def describe(self) -> str:
        if math.isnan(self.difference):
            return f"{self.verdict}, over {self.seeds} seeds"
        return (
            f"{self.verdict}: {self.difference:+.3g} +- {self.half_width:.2g} standard deviations of FP32 "
            f"over {self.seeds} seeds"
        )


def compare(
    *,
    fp32: Sequence[float],
    amp: Sequence[float],
    unpaired: Sequence[float] = (),
    alpha: float = ALPHA,
    margin: float = MARGIN,
) -> Parity:
    """Two one-sided t-tests on paired results.

    Args:
        fp32: one result for each seed (a loss, a metric, an area).
        amp: the same under AMP, in the same order of seeds.
        unpaired: FP32 results of further seeds, for a better estimate of the unit: five values alone give one that is
            less than 0.4 of the truth in one case of forty.
        alpha: level of each one-sided test.
        margin: in standard deviations of all FP32 results.

    Raises:
        ValueError: the two differ in length.
    """
    pairs = list(zip(fp32, amp, strict=True))
    count = len(pairs)
    if not all(math.isfinite(value) for values in (fp32, amp, unpaired) for value in values):
        return _undecided(count, Verdict.NOT_FINITE)
    if count < FEWEST_SEEDS:
        return _undecided(count, Verdict.TOO_FEW_SEEDS)
    spread = statistics.stdev([*fp32, *unpaired])
    if spread == 0.0:
        # Nothing to measure in; but nothing to measure either where every pair is the same.
        same = all(before == after for before, after in pairs)
        return (
            Parity(seeds=count, spread=0.0, difference=0.0, half_width=0.0, verdict=Verdict.EQUIVALENT)
            if same
            else _undecided(count, Verdict.NO_SPREAD)
        )
    differences = [(after - before) / spread for before, after in pairs]
    difference = statistics.fmean(differences)
    half_width = student_quantile(1 - alpha, count - 1) * statistics.stdev(differences) / math.sqrt(count)
    if abs(difference) + half_width < margin:
        verdict = Verdict.EQUIVALENT
    elif abs(difference) - half_width >= margin or half_width < margin / 2:
        # The whole interval lies outside, or it is so narrow that more seeds would hardly bring it in.
        verdict = Verdict.DIFFERENT
    else:
        verdict = Verdict.TOO_FEW_SEEDS
    return Parity(seeds=count, spread=spread, difference=difference, half_width=half_width, verdict=verdict)


def _undecided(count: int, verdict: Verdict) -> Parity:
    return Parity(seeds=count, spread=math.nan, difference=math.nan, half_width=math.nan, verdict=verdict)


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution.

    Args:
        probability: at least 0.5, below 1.
        freedom: degrees of freedom, at least 1.
    """
    high = 1.0
    while student_distribution(high, freedom) < probability:
        high *= 2.0
    low = 0.0
    for _ in range(80):
        middle = (low + high) / 2
        if student_distribution(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def student_distribution(value: float, freedom: int) -> float:
    """P(T <= value) for Student's t, ``freedom`` a whole number (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    theta = math.atan(value / math.sqrt(freedom))
    cosine = math.cos(theta)
    if freedom % 2:
        term, total = cosine, cosine if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        term = total = 1.0
        for k in range(2, freedom, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = math.sin(theta) * total
    return 0.5 + inside / 2
