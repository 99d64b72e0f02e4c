"""The recorded table of ranges: of every row, and what is measured here."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.families.ranges import probe
from amp_checks.families.ranges.cases import CASES
from amp_checks.families.ranges.checks import SOFT
from amp_checks.families.ranges.inputs import DIRECTIONS
from amp_checks.records import fixtures
from amp_checks.torch_api import state

RECORDED: dict[str, Any] = json.loads(fixtures.fixture("ranges/torch-2.13.0.json").read_text(encoding="utf-8"))
ROWS = {case.name: case for case in CASES}
SAMPLE = ("linear", "gelu", "softmax.int", "layer_norm", "var", "dice by hand", "attention by hand")


def test_every_row_is_recorded_on_every_backend() -> None:
    names = {name for key in RECORDED["ranges"] for name in [key.rpartition(" ")[0]]}
    places = {key.rpartition(" ")[2] for key in RECORDED["ranges"]}

    assert names == set(ROWS)
    assert places == {f"{kind}-{dtype}" for kind in ("cpu", "emulated-cuda") for dtype in ("float16", "bfloat16")}
    assert len(RECORDED["ranges"]) == len(names) * len(places)
    assert RECORDED["not_measured"] == []


@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_recorded_is_measured_here(name: str) -> None:
    for backend_id in ("cpu-float16", "emulated-cuda-float16"):
        backend = backends.backend(backend_id)
        with state.one_thread(), backend.activate():
            found = probe.measure(ROWS[name], backend)
        for direction in DIRECTIONS:
            low, high, _, _ = RECORDED["ranges"][f"{name} {backend_id}"][direction]
            ends = ((found[direction].amp.low, low), (found[direction].amp.high, high))
            for measured, recorded in ends:
                assert probe.agree(measured, math.nan if recorded is None else recorded) < SOFT.value, (direction, low)
