"""Processors whose bfloat16 products make zero of subnormal numbers, and those that do not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from amp_checks import backends, core
from amp_checks.families.ranges import checks, probe
from amp_checks.families.ranges.cases import CASES
from amp_checks.families.ranges.inputs import INACCURATE, NAN, OVERFLOWS, UNDERFLOWS
from amp_checks.suite.measure import measure

TINY = 2.0**-126
EDGE = 2.0**-121
ROWS = {case.name: case for case in CASES}


def test_from_where_on_zeros_count_for_nothing() -> None:
    """Four eps of bfloat16 are 1/32 of the largest element."""
    assert probe.FLUSHED == EDGE


@pytest.mark.parametrize(
    ("low", "below", "expected"),
    [
        (TINY, INACCURATE, TINY),
        (TINY * 4, INACCURATE, TINY * 4),
        (TINY * 4, UNDERFLOWS, TINY * 4),
        (EDGE * 2, INACCURATE, EDGE),
        (1.0, INACCURATE, EDGE),
        (TINY * 4, NAN, TINY),
        (float("nan"), NAN, TINY),
    ],
    ids=["as claimed", "within", "to zero", "a little above", "far above", "not finite", "nowhere"],
)
def test_a_lower_end_may_lie_where_zeros_begin_to_count(low: float, below: str, expected: float) -> None:
    claimed = checks.Claim(range=probe.Range(low=TINY, high=1e38, below="end of the span", above=OVERFLOWS), why="so")
    found = probe.Range(low=low, high=1e38, below=below, above=OVERFLOWS)
    moved = checks.flushed(claimed, found)
    assert moved.range.low == expected
    assert (moved.range.high, moved.range.above) == (1e38, OVERFLOWS)
    assert (moved == claimed) == (expected == TINY)
    above = checks.Claim(range=probe.Range(low=1.0, high=2.0, below=UNDERFLOWS, above=OVERFLOWS), why="its row")
    assert checks.flushed(above, found) == above


@pytest.mark.parametrize("name", ["gelu", "mm long", "conv2d"])
@pytest.mark.parametrize("flushes", [False, True])
def test_what_is_lost_there_is_a_fault_elsewhere(name: str, flushes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured range decides: on a processor that flushes, it passes only because that is known of it."""
    real = probe.flushes_subnormals()
    monkeypatch.setattr(probe, "flushes_subnormals", lambda: flushes)
    result = measure(checks.check_safe_range, ROWS[name], backends.backend("cpu-bfloat16"))
    passed = result.status is core.Status.PASSED
    assert passed == (flushes or not real), result.describe()


@pytest.mark.parametrize("backend", ["cpu-bfloat16", "emulated-cuda-bfloat16"])
def test_both_kinds_of_kernels_pass(backend: str) -> None:
    """oneDNN is asked to leave AVX-512 alone: its other kernels keep subnormal numbers."""
    items = [f"--item=check_safe_range-range-{name}-{backend}" for name in ("gelu", "mm-long", "conv2d")]
    done = subprocess.run(
        [sys.executable, "-m", "amp_checks", "run", "-n", "0", *items],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
