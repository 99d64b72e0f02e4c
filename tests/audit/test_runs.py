"""Each run is made once, when it is first asked for; changes and probes listen to it side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from audited_loops import CPU, loop, small
from torch import Tensor

from amp_checks.audit import AuditCase, Training
from amp_checks.audit.evidence import Evidence
from amp_checks.audit.rules import judge
from amp_checks.audit.runs.plan import AMP, FP32, FP64, OVERFLOW, Runs
from amp_checks.audit.runs.undo import Undo
from amp_checks.audit.watching.events import ScalerStep
from amp_checks.audit.watching.state import Listener
from amp_checks.audit.watching.watch import Watch


class _Counted:
    """A correct program that counts how often it is built."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self, device: str, dtype: torch.dtype) -> Training:
        self.built += 1
        model = small().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        step = loop()(model, optimizer, torch.amp.GradScaler(device, init_scale=2.0**10))
        return Training(model=model, batches=[torch.randn(16, 8).to(device) for _ in range(3)], step=step)


def test_a_run_is_made_once() -> None:
    program = _Counted()
    runs = Runs(AuditCase(id="counted", build=program), CPU)
    assert program.built == 0
    assert runs.trace(AMP) is runs.trace(AMP)
    assert program.built == 1
    assert runs.trace(FP32) is runs.trace(dataclasses.replace(FP32))
    assert program.built == 2


def test_a_healthy_program_runs_five_times() -> None:
    program = _Counted()
    judge(Evidence(Runs(AuditCase(id="counted", build=program), CPU)))
    assert program.built == 5  # as it is, float32, float64, that with its scaler, with an overflow


def test_undoing_a_fault_repeats_only_what_it_changes() -> None:
    program = _Counted()
    evidence = Evidence(Runs(AuditCase(id="counted", build=program), CPU))
    undone = evidence.without(Undo(gradients=True))
    assert undone is not None
    assert undone is evidence.without(Undo(gradients=True))
    assert (evidence.fp64, program.built) != (None, 0)
    built = program.built
    assert undone.fp64 is not None
    assert program.built == built


def test_setups_are_values() -> None:
    undone = FP64.without(Undo(inner=True))
    assert undone.changes == FP64.changes
    assert undone.follows == AMP.but(Undo(inner=True))
    assert OVERFLOW.without(Undo(inner=True)).changes == (*OVERFLOW.changes, Undo(inner=True))
    assert len({AMP, dataclasses.replace(AMP), FP32, FP64}) == 3


class _Heard(Listener):
    def __init__(self) -> None:
        self.scales: list[float | None] = []

    def backward_ended(self, scale: float | None) -> None:
        self.scales.append(scale)


def test_every_listener_hears_every_backward() -> None:
    watch, listeners = Watch(), [_Heard(), _Heard()]
    watch.state.listeners += listeners
    with watch.installed():
        training = _Counted()("cpu", torch.float16)
        watch.know(training)
        assert training.step is not None
        with watch.watching():
            training.step(training.batches[0])
    assert [one.scales for one in listeners] == [[2.0**10], [2.0**10]]


def test_events_cannot_be_changed() -> None:
    event: Any = ScalerStep(
        0, None, None, optimizer=0, skipped=False, enabled=True, plain_at=None, carried=None, scale=1.0
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.skipped = True


def test_a_step_that_raises_is_an_event_too() -> None:
    def case(device: str) -> Training:
        model = small().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler(device)

        def step(batch: Tensor) -> None:
            scaler.scale(model(batch).mean())
            scaler.step(optimizer)

        return Training(model=model, batches=[torch.randn(16, 8)], step=step)

    trace = Runs(AuditCase(id="raises", build=case), CPU).trace(AMP)
    assert trace.failure is not None
    assert [event.skipped for event in trace.of(ScalerStep)] == [False]
