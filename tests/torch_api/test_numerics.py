"""Units of error: their formula on worked examples, and that nothing slips through them."""

from __future__ import annotations

import math

import pytest
import torch

from amp_checks.torch_api import numerics

EPS16 = 2.0**-10


def ratio(actual: list[float], reference: list[float]) -> float:
    return numerics.error_ratio(
        torch.tensor(actual), torch.tensor(reference, dtype=torch.float64), run_dtype=torch.float16
    )


def test_the_ratio_is_the_largest_error_over_eps_times_the_largest_reference() -> None:
    assert ratio([1.0, 4.0], [1.0, 4.0]) == 0.0
    assert ratio([1.0 + EPS16, 4.0], [1.0, 4.0]) == pytest.approx(0.25)
    assert ratio([1.0, 4.0 + 8 * EPS16], [1.0, 4.0]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("actual", "reference"),
    [
        ([math.nan, 1.0], [1.0, 1.0]),
        ([1.0, 1.0], [math.nan, 1.0]),
        ([math.inf, 1.0], [1.0, 1.0]),
        ([math.inf, 1.0], [-math.inf, 1.0]),
        ([1.0, 1.0], [math.inf, 1.0]),
        ([math.nan, 1.0], [math.inf, 1.0]),
        ([1e-30], [0.0]),
        ([1.0], [1.0, 1.0]),
    ],
)
def test_what_cannot_be_measured_is_infinitely_wrong(actual: list[float], reference: list[float]) -> None:
    assert ratio(actual, reference) == math.inf


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [math.inf, 2.0], [math.nan, 2.0], [math.inf, math.nan, -math.inf]])
def test_equal_results_have_no_error_whatever_they_hold(values: list[float]) -> None:
    assert ratio(values, values) == 0.0


def test_a_finite_error_beside_equal_infinities_is_measured() -> None:
    assert ratio([math.inf, 1.0 + EPS16], [math.inf, 1.0]) == pytest.approx(1.0)


def test_one_bfloat16_rounding_passed_off_as_float16_is_beyond_any_healthy_ratio() -> None:
    exact = numerics.randn(256, seed="rounding").double()
    assert numerics.error_ratio(exact.half(), exact, run_dtype=torch.float16) < 0.5
    assert numerics.error_ratio(exact.bfloat16(), exact, run_dtype=torch.float16) > 2.0


def test_same_bits_tells_signed_zeros_dtypes_and_payloads_apart() -> None:
    zero = torch.zeros(2)
    assert numerics.same_bits(zero, zero.clone())
    assert not numerics.same_bits(zero, -zero)
    assert not numerics.same_bits(zero, zero.half())
    assert not numerics.same_bits(zero, torch.zeros(3))
    nan = torch.tensor([math.nan])
    assert numerics.same_bits(nan, nan.clone())
    assert numerics.same_bits(torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]))
    assert numerics.same_bits(torch.tensor(1.5), torch.tensor(1.5))
    assert not numerics.same_bits(torch.tensor(1.5), torch.tensor(1.25))


def test_seeded_numbers_are_the_same_everywhere_and_move_no_global_state() -> None:
    before = torch.get_rng_state()
    first = numerics.randn(4, 4, seed="a")
    assert torch.equal(first, numerics.randn(4, 4, seed="a"))
    assert not torch.equal(first, numerics.randn(4, 4, seed="b"))
    assert torch.equal(first.half(), numerics.randn(4, 4, seed="a", dtype=torch.float16))
    with numerics.seeded("a"):
        drawn = torch.randn(3)
    with numerics.seeded("a"):
        assert torch.equal(drawn, torch.randn(3))
    assert torch.equal(before, torch.get_rng_state())
