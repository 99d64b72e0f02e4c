"""Curves: from the runs that a check compared to the page."""

from __future__ import annotations

import json

import pytest
from documents import CURVES

from amp_checks.report import curves


def test_curves_that_differ_in_their_lines_alone_are_one() -> None:
    first, second = (curves.read(CURVES[0] | {"item": name}) for name in ("a", "b"))
    [both] = curves.together([first, second])
    assert both.items == ("a", "b")
    assert len(both.lines) == 4
    for change in ({"title": "other"}, {"band": None}, {"marks": None}, {"log": False}):
        assert len(curves.together([first, curves.read(CURVES[0] | change)])) == 2


def test_a_run_leaves_the_curves_of_what_it_compared(pytester: pytest.Pytester) -> None:
    item = "check_trains_like_fp32-as_published-cpu-float16"
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-item", item)
    done = pytester.runpytest_inprocess(*fixed, "--amp-json", "out.json")
    assert done.ret == 0
    content = json.loads((pytester.path / "out.json").read_text(encoding="utf-8"))
    scale, loss = map(curves.read, content["curves"])
    assert scale.items == loss.items == (item,)
    [(name, values)] = loss.lines
    assert name == "cpu-float16"
    assert loss.band is not None
    assert len(values) == len(loss.band[1]) == 100
    assert all(low <= high for low, high in zip(*loss.band[1:], strict=True))
    # The recipe whose gradients overflow at every scale above 1: it falls from 65536, a step skipped each time.
    assert scale.marks is not None
    assert len(scale.marks[1]) == 16
    assert (scale.lines[0][1][0], scale.lines[0][1][-1]) == (65536.0, 1.0)
