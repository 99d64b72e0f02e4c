"""Intervals, verdicts, and that timing alternates the precisions of a program of its own each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from amp_checks import backends
from amp_checks.audit.case import AuditCase
from amp_checks.core import UsageError
from amp_checks.worth import timing
from amp_checks.worth.timing import Speed, interval, timed


def speed(median: float, low: float, high: float) -> Speed:
    return Speed(dtype="float16", seconds=1.0, fp32_seconds=median, speedup=median, low=low, high=high)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (speed(1.5, 1.3, 1.7), "faster"),
        (speed(0.6, 0.5, 0.7), "slower"),
        (speed(1.5, 1.04, 1.7), "no difference"),
        (speed(1.5, 0.9, 2.1), "no difference"),
        (speed(0.6, 0.3, 1.1), "no difference"),
    ],
)
def test_a_verdict_needs_a_margin_and_an_interval_on_one_side(found: Speed, verdict: str) -> None:
    assert found.verdict == verdict


@pytest.mark.parametrize("count", [8, 9, 15, 31])
def test_the_interval_holds_the_median_in_99_of_100_cases_and_the_next_does_not(count: int) -> None:
    low, high = interval(count)
    assert low + high == count - 1

    def outside(place: int) -> float:
        return 2.0 * sum(math.comb(count, below) for below in range(place + 1)) / float(2**count)

    assert outside(low) <= 0.01
    assert outside(low + 1) > 0.01


def built(seen: list[tuple[bool, torch.dtype]]) -> AuditCase:
    def case(device: str, dtype: torch.dtype) -> dict[str, Any]:
        model = torch.nn.Linear(8, 8).to(device)

        def step(batch: torch.Tensor) -> None:
            with torch.autocast(device, dtype=dtype):
                out = model(batch)
            seen.append((torch.is_autocast_enabled(device), out.dtype))
            out.float().sum().backward()

        return {"model": model, "batches": [torch.ones(2, 8)], "step": step}

    return AuditCase(id="timed", build=case)


def test_each_round_runs_fp32_and_both_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_LEAST_SECONDS", 0.0)
    seen: list[tuple[bool, torch.dtype]] = []
    both = [backends.backend("cpu-float16"), backends.backend("cpu-bfloat16")]
    found = timed(built(seen), both, machine="here", rounds=8)
    assert {dtype for _, dtype in seen} == {torch.float32, torch.float16, torch.bfloat16}
    assert [one.dtype for one in found.speeds] == ["float16", "bfloat16"]
    assert all(one.low <= one.speedup <= one.high for one in found.speeds)
    assert "float32" in found.baseline
    assert all(one.memory is None for one in found.speeds)
    assert "machine" in found.as_json()


def test_a_loop_of_the_programs_own_is_not_timed() -> None:
    def case(device: str) -> dict[str, Any]:
        del device
        return {"model": torch.nn.Linear(2, 2), "run": lambda: None}

    with pytest.raises(UsageError, match="loop of its own"):
        timed(AuditCase(id="loop", build=case), [backends.backend("cpu-bfloat16")], machine="here")
