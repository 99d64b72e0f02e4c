"""Gradients that depend on the loss scale, overflows that are hidden, and gradients that are replaced: what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Report, Severity, Training, audit, dependence
from amp_checks.audit.dependence import Made
from amp_checks.audit.report import text

CPU = backends.backend("cpu-float16")
Program = Callable[[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler], Callable[[Tensor], None]]


def _audited(program: Program, **scaler: Any) -> Report:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        grad_scaler = torch.amp.GradScaler(device, **{"init_scale": 2.0**10, **scaler})
        step = program(model, optimizer, grad_scaler)
        return Training(model=model, batches=[torch.randn(16, 8).to(device) for _ in range(5)], step=step)

    return audit(AuditCase(id="hooks", build=case), CPU)


def _findings(report: Report) -> list[str]:
    return [one.rule for one in report.diagnostics if one.severity is not Severity.NOTE]


def _loop(
    loss: Callable[[nn.Module, Tensor], Tensor] = lambda model, batch: (model(batch).float() - 0.3).square().mean(),
    before: Callable[[nn.Module, torch.amp.GradScaler], None] = lambda model, scaler: None,
    between: Callable[[nn.Module, torch.amp.GradScaler], None] = lambda model, scaler: None,
) -> Program:
    """A loop; ``before`` is done once, ``between`` after each backward."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        before(model, scaler)

        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                value = loss(model, batch)
            scaler.scale(value).backward()
            between(model, scaler)
            scaler.step(optimizer)
            scaler.update()

        return step

    return program


def _hook(make: Callable[[Tensor, Callable[[], float]], Tensor], *names: str) -> Callable[..., None]:
    """Hooks on parameters, all where none is named."""

    def before(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        for name, parameter in model.named_parameters():
            if not names or name in names:
                parameter.register_hook(lambda gradient: make(gradient, scaler.get_scale))

    return before


ADDED_AS_SCALED = _hook(lambda gradient, scale: gradient + 0.1 * scale())
ADDED = _hook(lambda gradient, scale: gradient + 0.1)


@pytest.mark.parametrize(
    "scaler",
    [
        {"init_scale": 1000.0},
        {"growth_interval": 1},
        {"init_scale": 1000.0, "growth_interval": 1, "growth_factor": 1.7},
        {"init_scale": 2.0**19},
        {"init_scale": 2.0**19, "growth_interval": 1},
    ],
    ids=["no power of two", "grows each step", "by no power of two", "skips at first", "skips and grows"],
)
def test_scaled_terms_follow_any_loss_scale(scaler: dict[str, Any]) -> None:
    report = _audited(_loop(before=ADDED_AS_SCALED), **scaler)
    assert _findings(report) == [], text(report)
    assert _findings(_audited(_loop(before=ADDED), **scaler)) == ["gradients-depend-on-scale"]


def test_small_terms_of_a_large_gradient_are_found() -> None:
    tiny = _hook(lambda gradient, scale: gradient * (1.0 + 0.01 / (scale() ** 0.1)), "0.weight")
    (one,) = [one for one in _audited(_loop(before=tiny)).diagnostics if one.rule == "gradients-depend-on-scale"]
    assert "gradient of 0.weight by 0.5 %" in one.message
    epsilon = _hook(lambda gradient, scale: gradient / (gradient.norm() + 1e-7) * gradient.norm())
    assert _findings(_audited(_loop(before=epsilon))) == []


def test_each_optimizer_is_compared_at_its_own_first_step() -> None:
    """The first optimizer's gradients overflow at first; the other's never do."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        del optimizer
        first, other = model.get_submodule("0"), model.get_submodule("2")
        optimizers = [torch.optim.SGD(one.parameters(), 1e-3) for one in (first, other)]

        def step(batch: Tensor) -> None:
            for optimizer in optimizers:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                large = (first(batch).float() * 64.0).square().mean() * 64.0
                small = other(torch.tanh(first(batch)).detach()).float().square().mean()
            scaler.scale(large).backward()
            scaler.scale(small).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

        return step

    report = _audited(program, init_scale=2.0**14)
    assert any("steps skipped at first: 1" in line or "2" in line for line in text(report).splitlines())
    assert "gradients-depend-on-scale" not in _findings(report), text(report)


def test_a_second_loss_of_scaled_gradients_is_found() -> None:
    """No hook: a step along the gradient of a scaled loss makes the input of another loss."""

    def program(divides: bool) -> Program:
        def made(
            model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
        ) -> Callable[[Tensor], None]:
            def step(batch: Tensor) -> None:
                batch = batch.clone().requires_grad_()
                with torch.autocast("cpu", torch.float16):
                    loss = (model(batch).float() - 0.3).square().mean()
                (slope,) = torch.autograd.grad(scaler.scale(loss), batch)
                slope = slope / scaler.get_scale() if divides else slope
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    loss = (model(batch.detach() + slope).float() - 0.3).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

            return step

        return made

    assert _findings(_audited(program(divides=True))) == []
    assert "gradients-depend-on-scale" in _findings(_audited(program(divides=False)))


def _made(op: str, *values: float, where: str = "a.py:1") -> Made:
    return Made(op=op, where=where, value=torch.tensor(values, dtype=torch.float64))


def test_the_first_op_that_does_not_follow_the_scale_is_to_blame() -> None:
    plain = [_made("norm", 5.0), _made("mul", 1.0, 2.0), _made("add", 3.0, 4.0), _made("mul", 6.0, 8.0)]
    scaled = [_made("norm", 0.125), _made("mul", 8.0, 16.0), _made("add", 9.0, 17.0), _made("mul", 1.0, 1.0)]
    scaled[0] = _made("norm", 5.0 / 64)  # its inverse square
    found = dependence.find(plain, scaled, 8.0)
    assert found == dependence.Culprit(op="add", where="a.py:1")


def test_where_every_op_follows_the_scale_the_last_is_to_blame() -> None:
    plain, scaled = [_made("norm", 2.0), _made("sign", 1.0)], [_made("norm", 16.0), _made("sign", 1.0)]
    assert dependence.find(plain, scaled, 8.0) == dependence.Culprit(op="sign", where="a.py:1")
    assert dependence.find([], [], 8.0) is None


@pytest.mark.parametrize(
    "other",
    [_made("mul", 1.0), _made("sign", 1.0, where="a.py:2"), _made("sign", 1.0, 1.0)],
    ids=["op", "line", "shape"],
)
def test_programs_that_part_are_not_compared_any_further(other: Made) -> None:
    first = _made("add", 1.0)
    assert dependence.find([first, other], [first, _made("sign", 3.0)], 8.0) == dependence.Culprit(
        op="add", where="a.py:1"
    )


def test_parameters_that_stay_infinite_hide_no_overflow() -> None:
    clean = _hook(lambda gradient, scale: gradient.nan_to_num(0.0, 0.0, 0.0), "0.weight", "0.bias", "2.weight")
    assert _findings(_audited(_loop(before=clean))) == []
    everywhere = _hook(lambda gradient, scale: gradient.nan_to_num(0.0, 0.0, 0.0))
    assert _findings(_audited(_loop(before=everywhere))) == ["overflow-hidden"]


def test_a_loss_without_gradient_hides_no_overflow() -> None:
    """A hinge that is satisfied: zero, whatever comes in; and hooks that look at it."""

    def hinge(model: nn.Module, batch: Tensor) -> Tensor:
        return torch.relu(model(batch).float() - 100.0).sum()

    seen: list[float] = []

    def looks(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        seen.append(float(gradient.abs().max()))
        return gradient * 1.0

    assert "overflow-hidden" not in _findings(_audited(_loop(loss=hinge, before=_hook(looks))))
    assert seen


def test_a_program_that_skips_by_itself_hides_no_overflow() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not norm.isfinite():
                optimizer.zero_grad(set_to_none=False)
            scaler.step(optimizer)
            scaler.update()

        return step

    assert _findings(_audited(program)) == []


def test_an_overflow_hidden_before_unscale_is_found_there() -> None:
    """A step behind the scaler's back does not keep the other fault from being told."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad[~parameter.grad.isfinite()] = 0.0
            scaler.unscale_(optimizer)
            optimizer.step()
            scaler.update()

        return step

    report = _audited(program)
    assert set(_findings(report)) == {"scaler-bypassed", "overflow-hidden"}, text(report)


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
    report = _audited(_loop(between=_divided(2.0, in_place=in_place)))
    assert _findings(report) == [], text(report)
    (note,) = [one for one in report.diagnostics if one.rule == "scaled-gradients-changed"]
    assert note.op == "aten::div.Tensor"
    report = _audited(_loop(between=_divided(2.0, scale=True, in_place=in_place)))
    assert _findings(report) == ["scaled-gradients-changed"], text(report)


def test_gradients_that_are_only_copied_are_not_changed() -> None:
    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    assert [one.rule for one in _audited(_loop(between=between)).diagnostics if one.rule != "initial-scale"] == []


def test_what_is_made_of_scaled_gradients_and_not_used_is_a_read() -> None:
    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            if parameter.grad is not None:
                (parameter.grad * 2.0).clamp(-1.0, 1.0)

    assert _findings(_audited(_loop(between=between))) == ["scaled-gradients-read"]


def test_the_scalers_methods_come_back() -> None:
    before = dict(vars(torch.amp.GradScaler))
    assert _findings(_audited(_loop(before=ADDED))) == ["gradients-depend-on-scale"]
    assert dict(vars(torch.amp.GradScaler)) == before
