from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_checks.reference.parity import Verdict, compare, student_quantile

FP32 = [1.0, 1.2, 0.9, 1.1, 0.8]


def shifted(by: float) -> list[float]:
    return [value + by for value in FP32]


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    # Printed tables of Student's t.
    [
        (0.95, 1, 6.3138),
        (0.95, 2, 2.9200),
        (0.95, 4, 2.1318),
        (0.975, 9, 2.2622),
        (0.95, 30, 1.6973),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, freedom: int, expected: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(expected, abs=5e-5)


def test_equal_results_are_equivalent() -> None:
    found = compare(fp32=FP32, amp=FP32)

    assert found.verdict is Verdict.EQUIVALENT
    assert found.ratio == 0.0


def test_the_unit_is_the_spread_of_fp32() -> None:
    found = compare(fp32=FP32, amp=shifted(0.1))

    assert found.spread == pytest.approx(0.15811, abs=1e-5)
    assert found.difference == pytest.approx(0.1 / 0.15811, abs=1e-4)
    assert found.half_width == pytest.approx(0.0, abs=1e-9)
    assert found.verdict is Verdict.DIFFERENT


def test_further_runs_in_fp32_change_the_unit_alone() -> None:
    found = compare(fp32=FP32, amp=shifted(0.1), unpaired=[0.0, 2.0])

    assert found.seeds == 5
    assert found.spread == pytest.approx(0.59161, abs=1e-5)
    assert found.difference == pytest.approx(0.1 / 0.59161, abs=1e-4)
    assert compare(fp32=FP32, amp=FP32, unpaired=[math.nan]).verdict is Verdict.NOT_FINITE


def test_half_width_is_that_of_the_paired_t_interval() -> None:
    # Differences 0.01, -0.01, 0.02, 0.0, 0.03: mean 0.01, standard deviation 0.0158114; t(0.95, 4) = 2.1318.
    amp = [value + d for value, d in zip(FP32, [0.01, -0.01, 0.02, 0.0, 0.03], strict=True)]
    found = compare(fp32=FP32, amp=amp)

    assert found.difference * found.spread == pytest.approx(0.01)
    assert found.half_width * found.spread == pytest.approx(2.1318 * 0.0158114 / math.sqrt(5), rel=1e-4)
    assert found.verdict is Verdict.EQUIVALENT


def test_a_better_amp_is_different_too() -> None:
    assert compare(fp32=FP32, amp=shifted(-0.2)).verdict is Verdict.DIFFERENT


def test_scattered_differences_are_no_pass_but_a_call_for_seeds() -> None:
    found = compare(fp32=FP32, amp=list(reversed(FP32)))

    assert found.verdict is Verdict.TOO_FEW_SEEDS
    assert found.ratio >= 0.25


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_seeds_say_so(count: int) -> None:
    found = compare(fp32=FP32[:count], amp=FP32[:count])

    assert found.verdict is Verdict.TOO_FEW_SEEDS
    assert math.isnan(found.ratio)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_result_that_is_not_finite_fails(bad: float) -> None:
    found = compare(fp32=FP32, amp=[*FP32[:-1], bad])

    assert found.verdict is Verdict.NOT_FINITE
    assert not found.ratio < 0.25


def test_two_curves_of_nan_are_no_pass() -> None:
    assert not compare(fp32=[math.nan] * 5, amp=[math.nan] * 5).ratio < math.inf


def test_the_same_result_in_every_pair_needs_no_unit() -> None:
    assert compare(fp32=[1.0] * 5, amp=[1.0] * 5).verdict is Verdict.EQUIVALENT


def test_no_spread_is_no_pass() -> None:
    found = compare(fp32=[1.0] * 5, amp=[1.0, 1.0, 1.0, 1.0, 1.0001])

    assert found.verdict is Verdict.NO_SPREAD
    assert not found.ratio < math.inf


def test_results_of_unequal_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare(fp32=FP32, amp=FP32[:4])


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=3, max_size=8),
    st.floats(0.5, 100.0),
    st.floats(-100.0, 100.0),
)
def test_verdicts_agree_with_the_interval_and_do_not_depend_on_unit_or_origin(
    pairs: list[tuple[float, float]], unit: float, origin: float
) -> None:
    fp32, amp = [p[0] for p in pairs], [p[1] for p in pairs]
    found = compare(fp32=fp32, amp=amp)
    if found.verdict is Verdict.NO_SPREAD or found.spread < 1e-3:
        return
    assert (found.verdict is Verdict.EQUIVALENT) == (found.ratio < 0.25)
    moved = compare(fp32=[unit * x + origin for x in fp32], amp=[unit * x + origin for x in amp])
    assert moved.ratio == pytest.approx(found.ratio, rel=1e-6, abs=1e-6)
