"""The oracle itself, against values worked out by hand."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch

from amp_checks.families.scaler.oracle.oracle import AS_RELEASED, Departure, Oracle, expect, f32
from amp_checks.families.scaler.oracle.program import (
    INF,
    Observation,
    Program,
    Settings,
    Step,
    Unscale,
    Update,
    backward,
)
from amp_checks.families.scaler.programs import ROWS

HAND: dict[str, tuple[list[str], list[int], list[tuple[int, ...]]]] = {
    # case: scale, tracker and steps after each iteration (four actions each)
    "clean-steps": (["8.0"] * 3, [1, 2, 3], [(1,), (2,), (3,)]),
    "inf-skips": (["8.0", "4.0", "4.0"], [1, 0, 1], [(1,), (1,), (2,)]),
    "growth": (["8.0", "16.0", "16.0", "32.0"], [1, 0, 1, 0], [(1,), (2,), (3,), (4,)]),
    "growth-every-step": (["24.0", "72.0", "216.0"], [0, 0, 0], [(1,), (2,), (3,)]),
    "skips-in-a-row": (["2.0", "0.5", "0.125"], [0, 0, 0], [(0,), (0,), (0,)]),
    "interval-0-never-grows": (["8.0", "8.0"], [1, 2], [(1,), (2,)]),
    "scale-falls-to-zero": (
        [
            "5.960464477539063e-08",
            "5.421010862427522e-20",
            "4.930380657631324e-32",
            "4.484155085839415e-44",
            "0.0",
            "0.0",
        ],
        [0] * 6,
        [(0,)] * 6,
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_values_by_hand(name: str) -> None:
    case = next(row for row in ROWS if row.id == name)
    seen = expect(case.program)[3::4]
    scales, trackers, steps = HAND[name]
    assert [each.scale for each in seen] == scales
    assert [each.tracker for each in seen] == trackers
    assert [each.steps for each in seen] == steps


def test_gradients_and_parameters_by_hand() -> None:
    seen = expect(Program(actions=(backward(1.0, -2.0), Unscale(), Step(), Update(new_scale=3.0))))
    assert [each.gradients for each in seen] == [
        ("[8.0, -16.0]",),
        ("[1.0, -2.0]",),
        ("[1.0, -2.0]",),
        ("[1.0, -2.0]",),
    ]
    assert [each.parameters for each in seen] == [("[1.0, 2.0]",)] * 2 + [("[0.0, 4.0]",)] * 2
    assert seen[-1] == Observation(
        error="none",
        returned="None",
        scale="3.0",
        tracker=0,
        steps=(1,),
        gradients=("[1.0, -2.0]",),
        parameters=("[0.0, 4.0]",),
        states=("[1.0, -2.0]",),
    )


def test_166_skips_from_the_defaults_reach_zero_and_165_do_not() -> None:
    oracle = Oracle(Program(actions=(), settings=Settings(init_scale=65536.0)))
    for number in range(1, 167):
        oracle.do(backward(INF, 0.0))
        oracle.do(Step())
        assert (oracle.do(Update()).scale == "0.0") == (number == 166)


@pytest.mark.parametrize("departure", Departure)
def test_each_departure_shows_in_a_row(departure: Departure) -> None:
    assert any(expect(case.program, frozenset({departure})) != expect(case.program) for case in ROWS), (
        f"no scenario shows that {departure}"
    )
    assert any(expect(case.program, AS_RELEASED - {departure}) != expect(case.program, AS_RELEASED) for case in ROWS)


def test_float32_arithmetic_in_float64_is_correctly_rounded() -> None:
    """Products, sums and quotients of random float32 bit patterns, against torch's float32 kernels."""
    draw = random.Random(0)
    numbers = [f32(struct.unpack("<f", struct.pack("<I", draw.getrandbits(32)))[0]) for _ in range(4000)]
    left, right = (torch.tensor(numbers[start::2], dtype=torch.float32) for start in (0, 1))
    for ours, theirs in (
        ([f32(a * b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)], left * right),
        ([f32(a + b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)], left + right),
        ([f32(a / b) if b else math.nan for a, b in zip(numbers[::2], numbers[1::2], strict=True)], left / right),
    ):
        torch.testing.assert_close(torch.tensor(ours), theirs, rtol=0, atol=0, equal_nan=True)
