"""Gradients that depend on the loss scale: hooks, custom functions, second losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from audited_loops import Program, audited, findings, hook, loop
from torch import Tensor, nn

from amp_checks.audit import Severity
from amp_checks.audit.probes import backward
from amp_checks.audit.probes.backward import Made, SourceOp
from amp_checks.audit.report import text

ADDED_AS_SCALED = hook(lambda gradient, scale: gradient + 0.1 * scale())
ADDED = hook(lambda gradient, scale: gradient + 0.1)


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
    report = audited(loop(before=ADDED_AS_SCALED), **scaler)
    assert findings(report) == [], text(report)
    assert findings(audited(loop(before=ADDED), **scaler)) == ["gradients-depend-on-loss-scale"]


def test_what_follows_is_told_though_the_scale_fell_before_the_first_step() -> None:
    clipped = hook(lambda gradient, scale: gradient * (0.01 / gradient.norm()).clamp(max=1.0))
    report = audited(loop(before=clipped), init_scale=2.0**19)
    assert "steps skipped at first: 0" not in text(report)
    assert findings(report) == ["gradients-depend-on-loss-scale"], text(report)
    assert "gradients-off-scale" in {one.rule for one in report.diagnostics}


def test_small_terms_of_a_large_gradient_are_found() -> None:
    tiny = hook(lambda gradient, scale: gradient * (1.0 + 0.01 / (scale() ** 0.1)), "0.weight")
    (one,) = [one for one in audited(loop(before=tiny)).diagnostics if one.rule == "gradients-depend-on-loss-scale"]
    assert "gradient of 0.weight by 0.5 %" in one.message
    epsilon = hook(lambda gradient, scale: gradient / (gradient.norm() + 1e-7) * gradient.norm())
    assert findings(audited(loop(before=epsilon))) == []


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

    report = audited(program, init_scale=2.0**14)
    assert any("steps skipped at first: 1" in line or "2" in line for line in text(report).splitlines())
    assert "gradients-depend-on-loss-scale" not in findings(report), text(report)


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

    assert findings(audited(program(divides=True))) == []
    assert "gradients-depend-on-loss-scale" in findings(audited(program(divides=False)))


def _made(op: str, *values: float, where: str = "a.py:1") -> Made:
    return Made(by=SourceOp(op=op, where=where), value=torch.tensor(values, dtype=torch.float64))


def test_the_first_op_that_does_not_follow_the_scale_is_to_blame() -> None:
    plain = [_made("norm", 5.0), _made("mul", 1.0, 2.0), _made("add", 3.0, 4.0), _made("mul", 6.0, 8.0)]
    scaled = [_made("norm", 0.125), _made("mul", 8.0, 16.0), _made("add", 9.0, 17.0), _made("mul", 1.0, 1.0)]
    scaled[0] = _made("norm", 5.0 / 64)  # its inverse square
    found = backward.find(plain, scaled, 8.0)
    assert found == SourceOp(op="add", where="a.py:1")


def test_where_every_op_follows_the_scale_the_last_is_to_blame() -> None:
    plain, scaled = [_made("norm", 2.0), _made("sign", 1.0)], [_made("norm", 16.0), _made("sign", 1.0)]
    assert backward.find(plain, scaled, 8.0) == SourceOp(op="sign", where="a.py:1")
    assert backward.find([], [], 8.0) is None


@pytest.mark.parametrize(
    "other",
    [_made("mul", 1.0), _made("sign", 1.0, where="a.py:2"), _made("sign", 1.0, 1.0)],
    ids=["op", "line", "shape"],
)
def test_programs_that_part_are_not_compared_any_further(other: Made) -> None:
    first, last = _made("add", 1.0), _made("exp", 5.0)
    found = backward.find([first, other, _made("exp", 1.0)], [first, _made("sign", 3.0), last], 8.0)
    assert found == SourceOp(op="add", where="a.py:1")


def test_ops_that_change_lists_in_place_are_to_blame_too() -> None:
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        torch._foreach_add_([parameter.grad], 0.1)

    def before(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(add)

    (one,) = [one for one in audited(loop(before=before)).diagnostics if one.rule == "gradients-depend-on-loss-scale"]
    assert one.op == "aten::_foreach_add_.Scalar"


def test_the_scalers_methods_come_back() -> None:
    before = dict(vars(torch.amp.GradScaler))
    assert findings(audited(loop(before=ADDED))) == ["gradients-depend-on-loss-scale"]
    assert dict(vars(torch.amp.GradScaler)) == before


def _normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


def test_gradients_that_are_all_rounding_error_depend_on_nothing() -> None:
    """A bias before a normalisation has none; a hook may make it as large as any."""
    assert findings(audited(loop(), _normalised, init_scale=1000.0)) == []

    def normalise(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        return nn.functional.normalize(gradient.flatten(), dim=0).view_as(gradient) * 1e-2 * scale()

    assert "gradients-depend-on-loss-scale" not in findings(audited(loop(before=hook(normalise)), _normalised))
    clamped = hook(lambda gradient, scale: gradient.clamp(-1.0, 1.0), "3.weight")
    report = audited(loop(before=clamped), _normalised, init_scale=1000.0)
    assert "gradient of 3.weight" in next(one.message for one in report.diagnostics if "depend" in one.rule)


def test_losses_of_several_scales_in_one_backward_are_not_compared() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        del optimizer
        parts = [model.get_submodule(name) for name in "02"]
        optimizers = [torch.optim.SGD(part.parameters(), 1e-2) for part in parts]
        scalers = [scaler, torch.amp.GradScaler("cpu", init_scale=2.0**6)]

        def step(batch: Tensor) -> None:
            for optimizer in optimizers:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                hidden = parts[0](batch)
                losses = [hidden.float().square().mean(), parts[1](hidden.detach()).float().square().mean()]
            torch.autograd.backward([one.scale(loss) for one, loss in zip(scalers, losses, strict=True)])
            for one, optimizer in zip(scalers, optimizers, strict=True):
                one.step(optimizer)
            for one in scalers:
                one.update()

        return step

    report = audited(program)
    assert findings(report) == [], text(report)


def _with_inner(uses: Callable[[Tensor, float], Tensor], *, from_step: int = 0) -> Program:
    """A loop whose loss takes the gradient of a scaled loss, times a part of the parameters."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        done = [0]

        def step(batch: Tensor) -> None:
            batch = batch.clone().requires_grad_()
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            (slope,) = torch.autograd.grad(scaler.scale(loss), batch, create_graph=True)
            if done[0] >= from_step:
                loss = loss + uses(slope, scaler.get_scale())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            done[0] += 1

        return step

    return program


def _divided_late(slope: Tensor, scale: float) -> Tensor:
    loss: Tensor = (slope.norm(dim=1) / scale).square().mean()
    return loss


def _as_it_is(slope: Tensor, scale: float) -> Tensor:
    del scale
    loss: Tensor = slope.norm(dim=1).square().mean() * 1e-4
    return loss


def test_an_inner_gradient_may_be_divided_by_the_scale_wherever_it_shows_no_more() -> None:
    report = audited(_with_inner(_divided_late))
    assert findings(report) == [], text(report)
    assert "inner-gradient-scaled" in findings(audited(_with_inner(_as_it_is)))
    # In a later iteration than the one whose gradients are compared, the first use of it is all there is to judge by.
    assert "inner-gradient-scaled" in findings(audited(_with_inner(_as_it_is, from_step=2)))


def test_a_backward_of_many_numbers_is_a_backward() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                output = model(batch).float()
            scaler.scale(output).backward(torch.ones_like(output) / output.numel())
            scaler.step(optimizer)
            scaler.update()

        return step

    assert findings(audited(program)) == []


def test_the_op_that_does_not_follow_the_scale_is_named() -> None:
    added = hook(lambda gradient, scale: (gradient + 0.1) * (scale() / scale()))
    (one,) = [one for one in audited(loop(before=added)).diagnostics if one.rule == "gradients-depend-on-loss-scale"]
    assert one.op == "aten::add.Tensor"


def test_each_scaler_is_updated_after_its_own_step() -> None:
    def program(steps_with_both: bool) -> Program:
        def made(
            model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
        ) -> Callable[[Tensor], None]:
            optimizer.param_groups.clear()
            optimizers = [torch.optim.SGD(model.get_submodule(name).parameters(), 1e-2) for name in "02"]
            scalers = [scaler, torch.amp.GradScaler("cpu", init_scale=2.0**8)]

            def step(batch: Tensor) -> None:
                for one in optimizers:
                    one.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    hidden = model.get_submodule("0")(batch)
                    other = model.get_submodule("2")(hidden.detach())
                scalers[0].scale(hidden.float().square().mean()).backward()
                scalers[1].scale(other.float().square().mean()).backward()
                scalers[0].step(optimizers[0])
                if steps_with_both:
                    scalers[1].step(optimizers[1])
                else:
                    scalers[1].unscale_(optimizers[1])
                for each in scalers:
                    each.update()

            return step

        return made

    assert findings(audited(program(steps_with_both=True))) == []
    assert "scaler-update-without-step" in findings(audited(program(steps_with_both=False)))


def test_fused_optimizers_unscale_in_their_kernels() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        del optimizer
        fused = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
        return loop(before=ADDED)(model, fused, scaler)

    assert findings(audited(program)) == ["gradients-depend-on-loss-scale"]


def test_a_wrong_loss_and_a_wrong_factor_are_two_errors() -> None:
    """What is done to gradients after backward does not follow from the loss, however wrong that is."""

    def program(factor: float) -> Program:
        def made(
            model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
        ) -> Callable[[Tensor], None]:
            clock = (40000.0 + torch.arange(16.0))[:, None]

            def step(batch: Tensor) -> None:
                optimizer.zero_grad()
                times = clock.half()
                with torch.autocast("cpu", torch.float16):
                    output = model(batch)
                loss = (output.float() - (times - times[0]).float() / 8.0).square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                for parameter in model.parameters():
                    if parameter.grad is not None and scaler.is_enabled():
                        parameter.grad /= factor
                scaler.step(optimizer)
                scaler.update()

            return step

        return made

    def errors(factor: float) -> set[str]:
        return {one.rule for one in audited(program(factor)).diagnostics if one.severity is Severity.ERROR}

    assert errors(1.0) == {"loss-differs"}
    assert errors(64.0) == {"loss-differs", "gradients-off-scale"}
