"""How wrong gradients are, of numbers made up for it."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch

from amp_checks.audit import measures
from amp_checks.audit.measures import Compared
from amp_checks.audit.watching.compact import Gradients
from amp_checks.audit.watching.state import RunState
from amp_checks.audit.watching.trace import Trace
from amp_checks.audit.watching.uses import TensorUses

RIGHT = {name: torch.full((4,), float(place + 1), dtype=torch.float64) for place, name in enumerate("abcd")}


def _compared(
    amp: dict[str, torch.Tensor], fp32: dict[str, torch.Tensor], exact: dict[str, torch.Tensor] = RIGHT
) -> Compared:
    return Compared(
        amp=Trace(gradients=Gradients(amp)),
        fp32=Trace(gradients=Gradients(fp32)),
        exact=Trace(gradients=Gradients(exact)),
    )


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
    found = measures.wrong_size(_compared(amp, fp32))
    assert found == (factor if factor is None else pytest.approx(factor, rel=0.05))


def test_gradients_that_rounding_makes_as_large_have_no_size() -> None:
    for moved, factor in ((1.5, pytest.approx(16.0, rel=0.05)), (5.0, None)):
        perturbed = (Trace(gradients=Gradients(_times(all=moved))),) * 2
        compared = dataclasses.replace(_compared(_times(all=16.0), RIGHT), perturbed=perturbed)
        assert measures.wrong_size(compared) == factor


def test_what_is_all_rounding_error_depends_on_no_scale() -> None:
    """Without a run in float64 nothing tells FP32's own error: then size does."""
    plain = {"a": torch.ones(4), "b": torch.full((4,), 1e-9)}
    fp32 = Trace(raw_gradients=Gradients(plain))
    compared = Compared(amp=Trace(), fp32=fp32, exact=fp32)
    for name, factor, found in (("b", 100.0, None), ("a", 1.0005, None), ("a", 1.5, ("a", 0.5))):
        scaled = Trace(raw_gradients=Gradients(plain | {name: plain[name] * factor}))
        assert measures.worst_dependence(compared, scaled) == found
    assert measures.worst_dependence(compared, None) is None


def test_flushed_elements_do_not_make_gradients_small() -> None:
    long = {"a": torch.ones(1000, dtype=torch.float64)}
    flushed = {"a": long["a"] * (torch.arange(1000) == 0)}
    assert measures.wrong_size(_compared(flushed, long, long)) is None


def test_memory_that_is_given_to_another_tensor_forgets_what_it_was_multiplied_by() -> None:
    uses: Any = TensorUses(RunState())
    loss, multiply = torch.ones(1), types.SimpleNamespace(base="aten::mul", cast=False)
    uses._multiplied(multiply, [loss], (loss, 256.0), loss)
    assert uses.factors_of(loss) == (256.0,)
    uses._multiplied(multiply, [loss], (loss, loss), loss.expand(2))
    assert uses.factors_of(loss) == ()
