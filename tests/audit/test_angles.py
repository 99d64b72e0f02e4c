"""Angles that 16 bits have lost: which are told, how severely, on which line, and which are left in peace."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, Training, audit
from amp_checks.audit.finding import Diagnostic
from amp_checks.audit.watching.trace import Op
from amp_checks.audit.watching.watch import Watch

FREQUENCIES = 10000.0 ** -(torch.arange(0, 32, 2).float() / 32)


def _cosine(angles: Tensor) -> Tensor:
    return angles.cos()


def _joined(angles: Tensor) -> Tensor:
    both = torch.cat([angles, angles], -1)
    return both.sin()[:, :16]


def _exponential(angles: Tensor) -> Tensor:
    return torch.view_as_real(torch.exp(1j * angles.float()))[..., 0]


def _told(
    turn: Callable[[Tensor], Tensor], *, positions: Tensor, scale: float = 1.0, backend: str = "cpu-bfloat16"
) -> list[Diagnostic]:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(16, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def step(batch: tuple[Tensor]) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                angles = batch[0][:, None] @ (FREQUENCIES[None] * scale)
                loss = model(turn(angles)).float().square().mean()
            loss.backward()
            optimizer.step()

        return Training(model=model, batches=[(positions,)] * 3, step=step)

    report = audit(AuditCase(id="angles", build=case), backends.backend(backend))
    return [one for one in report.diagnostics if one.rule in ("angle-in-16-bits", "loss-not-finite")]


@pytest.mark.parametrize("turn", [_cosine, _joined, _exponential])
def test_the_product_is_told_whatever_hands_it_on(turn: Callable[[Tensor], Tensor]) -> None:
    (found,) = _told(turn, positions=torch.arange(1024).float())
    assert (found.op, found.severity) == ("aten::mm", Severity.ERROR)


def test_few_positions_are_no_finding() -> None:
    assert _told(_cosine, positions=torch.arange(32).float()) == []


def test_one_position_in_a_thousand_is_no_finding() -> None:
    positions = torch.zeros(1024)
    positions[7] = 1023.0
    assert _told(_cosine, positions=positions) == []


def test_a_small_error_is_a_warning() -> None:
    (found,) = _told(_cosine, positions=torch.arange(256).float(), scale=0.9, backend="cpu-float16")
    assert found.severity is Severity.WARNING


def test_angles_that_float32_loses_too_are_no_fault_of_amp() -> None:
    assert _told(_cosine, positions=torch.arange(64).float() + 1.7e7, scale=math.pi) == []


def test_angles_that_overflow_are_told_as_that_alone() -> None:
    (found,) = _told(_cosine, positions=torch.arange(0, 102400, 100).float(), backend="cpu-float16")
    assert found.rule == "loss-not-finite"


def test_two_casts_on_one_line_are_two_calls() -> None:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 2).to(device)
        return Training(
            model=model,
            batches=[torch.randn(4, 8).to(device)] * 3,
            loss=lambda model, batch: model(batch.to(dtype).float()).float().square().mean(),
        )

    report = audit(AuditCase(id="casts", build=case), backends.backend("cpu-bfloat16"))
    assert [one.rule for one in report.diagnostics] == ["cast-back-and-forth"]


def test_memory_given_to_a_tensor_of_another_dtype_is_no_cast_any_more() -> None:
    ops = Watch().ops
    tensors = (torch.zeros(4, dtype=torch.complex64), torch.zeros(4, dtype=torch.int64), torch.zeros(4))
    cast = Op(
        name="aten::_to_copy", step=0, backward=False, inputs=(), outputs=(torch.float32,), module=None, frame=None
    )
    ops.made = {tensor.data_ptr(): cast for tensor in tensors}
    assert ops.outputs(tensors) == [tensors[2]]
    assert ops.made == {}
