"""Ends of ranges worked out by arithmetic, against the measured ones."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.families.ranges import probe
from amp_checks.families.ranges.cases import CASES
from amp_checks.records import fixtures
from amp_checks.torch_api import state
from amp_checks.torch_api.backend import Backend

ROWS = {case.name: case for case in CASES}
SPOTS: list[dict[str, Any]] = json.loads(fixtures.fixture("ranges/spot_values.json").read_text(encoding="utf-8"))[
    "values"
]
PLACES = [(spot, device) for spot in SPOTS for device in spot["devices"]]


def _backend(device: str, dtype: str) -> Backend:
    return backends.backend(f"{'emulated-' if device == 'cuda' else ''}{device}-{dtype}")


@functools.cache
def _measured(op: str, device: str, dtype: str) -> dict[str, probe.Measured]:
    backend = _backend(device, dtype)
    with state.one_thread(), backend.activate():
        return probe.measure(ROWS[op], backend)


def test_there_are_enough_and_each_says_why() -> None:
    assert len(SPOTS) >= 25
    assert all(len(spot["why"]) > 5 for spot in SPOTS)
    assert {(spot["dtype"], spot["direction"], spot["edge"]) for spot in SPOTS} >= {
        ("float16", "forward", "high"),
        ("float16", "forward", "low"),
        ("float16", "backward", "high"),
        ("float16", "backward", "low"),
        ("bfloat16", "forward", "high"),
    }


@pytest.mark.parametrize(
    ("spot", "device"),
    PLACES,
    ids=[f"{s['op']} {s['dtype']} {s['direction']} {s['edge']} {device}".replace(" ", "-") for s, device in PLACES],
)
def test_the_measured_end_is_where_arithmetic_puts_it(spot: dict[str, Any], device: str) -> None:
    measured = _measured(spot["op"], device, spot["dtype"])[spot["direction"]].amp
    end = measured.low if spot["edge"] == "low" else measured.high

    assert max(end / spot["at"], spot["at"] / end) <= max(spot["within"], 1.001), (end, spot)
