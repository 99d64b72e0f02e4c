"""How wrong gradients are, of numbers made up for it."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from amp_checks.audit import measures
from amp_checks.audit.watching.ops import OpWatch
from amp_checks.audit.watching.trace import Trace
from amp_checks.audit.watching.watch import Watch

RIGHT = {name: torch.full((4,), float(place + 1), dtype=torch.float64) for place, name in enumerate("abcd")}


def _evidence(amp: dict[str, torch.Tensor], fp32: dict[str, torch.Tensor]) -> Any:
    traces = {name: Trace(gradients=gradients) for name, gradients in (("amp", amp), ("fp32", fp32), ("fp64", RIGHT))}
    return types.SimpleNamespace(shaken=(), **traces)


def _times(**factors: float) -> dict[str, torch.Tensor]:
    return {name: value * factors.get(name, factors.get("all", 1.0)) for name, value in RIGHT.items()}


@pytest.mark.parametrize(
    ("amp", "fp32", "factor"),
    [
        (_times(all=1 / 256), RIGHT, 1 / 256),
        (_times(all=16.0), RIGHT, 16.0),
        (_times(all=7.0), RIGHT, None),
        (_times(all=256.0, a=1.0), RIGHT, 256.0),
        (_times(d=256.0), RIGHT, None),
        (_times(all=1 / 256), _times(all=1 / 4), None),
        (_times(all=0.0), RIGHT, None),
        ({name: value * torch.tensor([1.0, 0.0, 0.0, 0.0]) for name, value in RIGHT.items()}, RIGHT, None),
        ({}, RIGHT, None),
    ],
    ids=["small", "large", "not far", "most", "one alone", "float32 too", "all zero", "some flushed", "none"],
)
def test_wrong_size(amp: dict[str, torch.Tensor], fp32: dict[str, torch.Tensor], factor: float | None) -> None:
    found = measures.wrong_size(_evidence(amp, fp32))
    assert found == (factor if factor is None else pytest.approx(factor, rel=0.05))


def test_gradients_that_rounding_makes_as_large_have_no_size() -> None:
    evidence = _evidence(_times(all=16.0), RIGHT)
    for moved, factor in ((1.5, pytest.approx(16.0, rel=0.05)), (5.0, None)):
        evidence.shaken = (Trace(gradients=_times(all=moved)),) * 2
        assert measures.wrong_size(evidence) == factor


def test_what_is_all_rounding_error_depends_on_no_scale() -> None:
    """Without a run in float64 nothing tells FP32's own error: then size does."""
    plain = {"a": torch.ones(4), "b": torch.full((4,), 1e-9)}
    evidence: Any = types.SimpleNamespace(fp32=Trace(given=plain), fp64=None)
    for name, factor, found in (("b", 100.0, None), ("a", 1.0005, None), ("a", 1.5, ("a", 0.5))):
        evidence.scaled = Trace(given=plain | {name: plain[name] * factor})
        assert measures.worst_dependence(evidence) == found
    evidence.scaled = None
    assert measures.worst_dependence(evidence) is None


def test_flushed_elements_do_not_make_gradients_small() -> None:
    long = {"a": torch.ones(1000, dtype=torch.float64)}
    flushed = {"a": long["a"] * (torch.arange(1000) == 0)}
    amp, full = Trace(gradients=flushed), Trace(gradients=long)
    evidence: Any = types.SimpleNamespace(amp=amp, fp32=full, fp64=full, shaken=())
    assert measures.wrong_size(evidence) is None


def test_memory_that_is_given_to_another_tensor_forgets_what_it_was_multiplied_by() -> None:
    ops: Any = OpWatch(Watch())
    loss, multiply = torch.ones(1), types.SimpleNamespace(base="aten::mul", cast=False)
    ops._multiplied(multiply, [loss], (loss, 256.0), loss)
    assert ops.factors_of(loss) == (256.0,)
    ops._multiplied(multiply, [loss], (loss, loss), loss.expand(2))
    assert ops.factors_of(loss) == ()
