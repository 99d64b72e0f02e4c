"""Scaled gradients in whose place the program puts others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from audited_loops import Program, audited, findings, loop
from torch import Tensor, nn

from amp_checks.audit.report import text
from amp_checks.audit.watching.gradients import Gradient


def test_gradients_that_are_replaced_by_zeros_are_zeroed() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def step(batch: Tensor) -> None:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    assert findings(audited(program)) == []


def _divided(by: float, *, scale: bool = False, in_place: bool = False) -> Callable[..., None]:
    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                made = parameter.grad.clone() / (scaler.get_scale() if scale else by)
                if in_place:
                    parameter.grad.data = made
                else:
                    parameter.grad = made

    return between


@pytest.mark.parametrize("in_place", [False, True], ids=["grad", "grad.data"])
def test_gradients_in_new_tensors_are_followed(in_place: bool) -> None:
    """A mean over processes commutes with the loss scale; dividing by the scale, as the step does again, does not."""
    report = audited(loop(between=_divided(2.0, in_place=in_place)))
    assert findings(report) == [], text(report)
    (note,) = [one for one in report.diagnostics if one.rule == "scaled-gradients-modified"]
    assert note.op == "aten::div.Tensor"
    report = audited(loop(between=_divided(2.0, scale=True, in_place=in_place)))
    assert findings(report) == ["scaled-gradients-modified"], text(report)


@pytest.mark.parametrize("when", ["before unscale_", "between backwards"])
def test_replaced_gradients_are_found_wherever_they_are_used_next(when: str) -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            for number, half in enumerate(batch.split(8)):
                with torch.autocast("cpu", torch.float16):
                    loss = (model(half).float() - 0.3).square().mean()
                scaler.scale(loss).backward()
                if when == "between backwards" and number == 0:
                    clamp()
            if when == "before unscale_":
                clamp()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

        def clamp() -> None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.clamp(-0.05, 0.05)

        return step

    assert findings(audited(program)) == ["scaled-gradients-modified"]


def test_gradients_that_are_only_copied_are_not_changed() -> None:
    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    assert [
        one.rule for one in audited(loop(between=between)).diagnostics if one.rule != "initial-loss-scale-unsuitable"
    ] == []


def test_what_is_made_of_scaled_gradients_and_not_used_is_a_read() -> None:
    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            if parameter.grad is not None:
                (parameter.grad * 2.0).clamp(-1.0, 1.0)

    assert findings(audited(loop(between=between))) == ["scaled-gradients-read"]


def test_copies_are_read_where_they_are_used() -> None:
    """Kept, or divided by the loss scale, they tell nothing wrong; anything else does, on its own line."""

    def between(uses: Callable[[Tensor, float], object]) -> Program:
        def used(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
            kept = [one.grad.detach().clone() for one in model.parameters() if one.grad is not None]
            for gradient in kept:
                uses(gradient, scaler.get_scale())

        return loop(between=used)

    assert findings(audited(between(lambda gradient, scale: (gradient, scale)))) == []
    assert findings(audited(between(lambda gradient, scale: gradient / scale))) == []
    (one,) = [
        one
        for one in audited(between(lambda gradient, scale: gradient.norm())).diagnostics
        if one.rule == "scaled-gradients-read"
    ]
    assert one.op == "aten::linalg_vector_norm"


def test_memory_of_a_replaced_gradient_is_not_given_to_another() -> None:
    """Through ``.data`` a tensor goes on with other memory: what lay in the first is no gradient any more."""
    parameter = nn.Parameter(torch.zeros(64))
    parameter.grad = torch.ones(64)
    gradient = Gradient("weight", parameter)
    address = parameter.grad.data_ptr()
    gradient.hold(parameter.grad)
    parameter.grad.data = torch.zeros(64)
    assert all(torch.empty(64).data_ptr() != address for _ in range(8))
    assert gradient.was_zeroed()
    gradient.reset()
    assert gradient.memory is None


def test_gradients_that_are_replaced_in_one_iteration_and_used_in_the_next_are_found() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        done = [0]

        def step(batch: Tensor) -> None:
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            done[0] += 1
            if done[0] % 2 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                return
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.clamp(-0.05, 0.05)

        return step

    assert findings(audited(program)) == ["scaled-gradients-modified"]


def test_a_norm_that_gradients_are_divided_by_is_read_and_changes_nothing() -> None:
    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            if parameter.grad is not None:
                norm = parameter.grad.norm()
                parameter.grad = parameter.grad / norm

    report = audited(loop(between=between))
    ops = {(one.rule, one.op) for one in report.diagnostics if one.rule.startswith("scaled-gradients")}
    assert ops == {
        ("scaled-gradients-read", "aten::linalg_vector_norm"),
        ("scaled-gradients-modified", "aten::div.Tensor"),
    }


def test_every_op_on_the_way_of_a_replaced_gradient_is_told() -> None:
    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            if parameter.grad is not None:
                made = parameter.grad.clamp(-0.05, 0.05)
                parameter.grad = made + 0.0

    ops = [one.op for one in audited(loop(between=between)).diagnostics if one.rule == "scaled-gradients-modified"]
    assert ops == ["aten::clamp", "aten::add.Tensor"]
