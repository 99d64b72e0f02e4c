"""Overflows that are hidden from the scaler, and programs that deal with one by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from audited_loops import Program, audited, findings, hook, loop
from torch import Tensor, nn

from amp_checks.audit.report import text
from amp_checks.torch_api import private


@pytest.mark.parametrize("infinite", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_one_parameter_that_stays_infinite_hides_no_overflow(infinite: str) -> None:
    def clean(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        del scale
        return gradient.nan_to_num(0.0, 0.0, 0.0)

    names = {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert findings(audited(loop(before=hook(clean, *names - {infinite})))) == []
    assert findings(audited(loop(before=hook(clean)))) == ["overflow-hidden"]


def test_an_overflow_is_hidden_where_finite_numbers_are_made_of_it() -> None:
    def clean(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        made = gradient.nan_to_num(0.0, 0.0, 0.0)
        double = gradient * 2.0  # as infinite
        return made if scale() else double

    (one,) = [one for one in audited(loop(before=hook(clean))).diagnostics if one.rule == "overflow-hidden"]
    assert one.where is not None
    assert one.where.endswith(f"test_overflows.py:{clean.__code__.co_firstlineno + 1}")


def test_a_loss_without_gradient_hides_no_overflow() -> None:
    """A hinge that is satisfied: zero, whatever comes in; and hooks that look at it."""

    def hinge(model: nn.Module, batch: Tensor) -> Tensor:
        return torch.relu(model(batch).float() - 100.0).sum()

    seen: list[float] = []

    def looks(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        seen.append(float(gradient.abs().max()))
        return gradient * 1.0

    assert "overflow-hidden" not in findings(audited(loop(loss=hinge, before=hook(looks))))
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

    assert findings(audited(program)) == []


def test_a_program_that_leaves_the_step_out_hides_no_overflow() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            if all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None):
                scaler.step(optimizer)
                scaler.update()
            else:
                scaler.update(scaler.get_scale() / 2.0)

        return step

    assert "overflow-hidden" not in findings(audited(program))


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

    report = audited(program)
    assert set(findings(report)) == {"scaler-bypassed", "overflow-hidden"}, text(report)


def _by_hand(
    clear: Callable[[nn.Parameter], None], *, unscales: bool = True, goes_on: bool = False, updates: bool = True
) -> Program:
    """A loop that looks for infinities itself and clears gradients by its own means, one by one.

    ``goes_on``: where it finds one it clears gradients and steps all the same; else it leaves the step out.
    """

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def cleared() -> None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    clear(parameter)

        def step(batch: Tensor) -> None:
            cleared()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
            if all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None) or goes_on:
                if not all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None):
                    cleared()
                scaler.step(optimizer)
                scaler.update()
            elif updates:
                scaler.update()

        return step

    return program


def _new(parameter: nn.Parameter) -> None:
    parameter.grad = torch.zeros_like(parameter)


def _filled(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad[...] = 0


def _copied(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.copy_(torch.zeros_like(parameter))


def _data(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.data = torch.zeros_like(parameter)


def _zeroed(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.zero_()


def _gone(parameter: nn.Parameter) -> None:
    parameter.grad = None


CLEARINGS = [_new, _filled, _copied, _data, _zeroed, _gone]


@pytest.mark.parametrize("clear", CLEARINGS)
def test_gradients_may_be_cleared_by_any_means(clear: Callable[[nn.Parameter], None]) -> None:
    report = audited(_by_hand(clear))
    assert findings(report) == [], text(report)


def test_gradients_may_be_views_of_one_tensor_that_is_cleared() -> None:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        parameters = list(model.parameters())
        flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
        for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)

        def step(batch: Tensor) -> None:
            flat.zero_()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    report = audited(program)
    assert findings(report) == [], text(report)


@pytest.mark.parametrize("clear", [_new, _filled, _zeroed])
def test_a_step_with_cleared_gradients_is_no_skipped_one(clear: Callable[[nn.Parameter], None]) -> None:
    """The scaler sees zeros, and leaves its scale as it is."""
    assert findings(audited(_by_hand(clear, unscales=False, goes_on=True))) == ["overflow-hidden"]
    assert findings(audited(_by_hand(clear, unscales=True, goes_on=True))) == []


def test_a_step_that_is_left_out_without_the_scaler_is_found() -> None:
    report = audited(_by_hand(_zeroed, unscales=False, updates=False))
    assert findings(report) == ["overflow-hidden"], text(report)
    (one,) = [one for one in report.diagnostics if one.rule == "overflow-hidden"]
    assert "scaler.update() for such a step too" in one.remedy
    assert findings(audited(_by_hand(_zeroed, updates=True))) == []


def test_gradients_of_another_loss_are_not_taken_for_hidden_ones() -> None:
    """A generator's loss leaves gradients in the critic, which are cleared an iteration later."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        del optimizer
        generator, critic = model.get_submodule("0"), model.get_submodule("2")
        optimizers = [torch.optim.SGD(one.parameters(), 1e-3) for one in (critic, generator)]

        def loss_of(batch: Tensor, sign: float) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                loss: Tensor = (sign * critic(torch.tanh(generator(batch)))).float().square().mean()
            return loss

        def step(batch: Tensor) -> None:
            for one, sign, optimizer in zip((critic, generator), (1.0, -1.0), optimizers, strict=True):
                for parameter in one.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                scaler.scale(loss_of(batch, sign)).backward()
                scaler.step(optimizer)
            scaler.update()

        return step

    report = audited(program)
    assert findings(report) == [], text(report)


def _stepping_in_hooks(*, cleans: bool) -> Program:
    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        del optimizer
        optimizers = {one: torch.optim.SGD([one], 1e-2) for one in model.parameters()}

        def used(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if cleans:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            scaler.step(optimizers[parameter])  # type: ignore[index]
            parameter.grad.zero_()

        for one in model.parameters():
            one.register_post_accumulate_grad_hook(used)

        def step(batch: Tensor) -> None:
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            scaler.update()

        return step

    return program


def test_an_optimizer_that_steps_in_a_hook_hides_nothing() -> None:
    report = audited(_stepping_in_hooks(cleans=False))
    assert findings(report) == [], text(report)
    assert "overflow-hidden" in findings(audited(_stepping_in_hooks(cleans=True)))


def _halves(change: Callable[[Tensor], Tensor], *, after: Callable[[nn.Module], None] = lambda half: None) -> Program:
    """Two optimizers; ``change`` is done by hooks to gradients of the first layer, ``after`` to it after backward."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        del optimizer
        optimizers = [torch.optim.SGD(model.get_submodule(name).parameters(), 1e-2) for name in "02"]
        for parameter in model.get_submodule("0").parameters():
            parameter.register_hook(change)

        def step(batch: Tensor) -> None:
            for optimizer in optimizers:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            after(model.get_submodule("0"))
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

        return step

    return program


def test_each_optimizer_has_to_see_its_own_overflow() -> None:
    assert findings(audited(_halves(lambda gradient: gradient))) == []
    assert findings(audited(_halves(lambda gradient: gradient.nan_to_num(0.0, 0.0, 0.0)))) == ["overflow-hidden"]

    def ones(half: nn.Module) -> None:
        for parameter in half.parameters():
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(1.0, 1.0, 1.0)

    assert findings(audited(_halves(lambda gradient: gradient, after=ones))) == ["overflow-hidden"]


def test_what_is_frozen_hides_nothing() -> None:
    """By new zeros, or by a factor; the other optimizer's gradients tell the scaler."""

    def zeros(half: nn.Module) -> None:
        for parameter in half.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def factor(half: nn.Module) -> None:
        for parameter in half.parameters():
            if parameter.grad is not None:
                parameter.grad *= 0.0

    for frozen in (zeros, factor):
        report = audited(_halves(lambda gradient: gradient, after=frozen))
        assert findings(report) == [], text(report)


def test_gradients_that_are_assigned_hide_an_overflow_too() -> None:
    def program(cleans: bool) -> Program:
        def made(
            model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
        ) -> Callable[[Tensor], None]:
            def step(batch: Tensor) -> None:
                with torch.autocast("cpu", torch.float16):
                    loss = (model(batch).float() - 0.3).square().mean()
                parameters = list(model.parameters())
                for parameter, gradient in zip(
                    parameters, torch.autograd.grad(scaler.scale(loss), parameters), strict=True
                ):
                    parameter.grad = gradient.nan_to_num(0.0, 0.0, 0.0) if cleans else gradient
                scaler.step(optimizer)
                scaler.update()

            return step

        return made

    assert findings(audited(program(cleans=False))) == []
    assert findings(audited(program(cleans=True))) == ["overflow-hidden"]


class _Words(nn.Module):
    """Sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 4, sparse=True)
        self.register_buffer("mixes", torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.table((x * 3).long().clamp(-8, 7) + 8).mean(1)
        return nn.functional.linear(mean, self.get_buffer("mixes"))


def test_sparse_gradients_overflow_as_others_do() -> None:
    report = audited(loop(), model_of=_Words)
    assert findings(report) == [], text(report)
    cleaned = audited(loop(before=hook(lambda gradient, scale: gradient * 0.0 if scale() else gradient)), _Words)
    assert "program-raises-on-overflow" not in findings(cleaned)


def test_numbers_of_8_bits_are_met_and_left_alone() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        coarse = batch.to(torch.float8_e4m3fn).float()
        loss: Tensor = (model(coarse).float() - 0.3).square().mean()
        return loss

    def through(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        del scale
        gradient.to(torch.float8_e4m3fn)
        return gradient

    assert findings(audited(loop(loss=loss, before=hook(through)))) == []


def _fake(gradient: Tensor) -> Tensor:
    """As a compiler sees it."""
    with private.fake_tensor_mode() as mode:
        made: Tensor = mode.from_tensor(gradient) * 2.0
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda gradient: gradient.reshape(-1, 2).to_sparse_csr(),
        lambda gradient: gradient.to("meta"),
        lambda gradient: torch.nested.nested_tensor([gradient.flatten(), gradient.flatten()[:2]]),
        lambda gradient: torch.complex(gradient, gradient).abs(),
        lambda gradient: gradient.to_sparse(),
        _fake,
    ],
    ids=["compressed", "meta", "nested", "complex", "sparse", "fake"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_any_kind_may_be_made_of_an_overflow(make: Callable[[Tensor], Tensor]) -> None:
    """What cannot be looked at is left alone: an exception of ours would be told as the program's."""

    def uses(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        del scale
        make(gradient) * 2.0
        return gradient

    report = audited(loop(before=hook(uses)))
    assert findings(report) == [], text(report)


def test_a_program_that_exits_on_an_overflow_is_told_so() -> None:
    def leaves(gradient: Tensor, scale: Callable[[], float]) -> Tensor:
        if not gradient.isfinite().all():
            raise SystemExit(3)
        return gradient * (scale() / scale())

    report = audited(loop(before=hook(leaves)))
    assert findings(report) == ["program-raises-on-overflow"], text(report)
    assert "SystemExit" in next(one.message for one in report.diagnostics if one.rule == "program-raises-on-overflow")


def test_one_hidden_overflow_is_told_once() -> None:
    """At `unscale_`, and not again at the step."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            if not all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None):
                optimizer.zero_grad(set_to_none=False)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

        return step

    assert findings(audited(program)) == ["overflow-hidden"]


def test_an_optimizer_without_gradients_hides_nothing() -> None:
    """One parameter's gradients are cleaned, the others' are not; another optimizer waits for its turn."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        waits = torch.optim.SGD(nn.Linear(2, 2).parameters(), 1e-2)
        hook(lambda gradient, scale: gradient.nan_to_num(0.0, 0.0, 0.0), "0.weight")(model, scaler)
        step = loop()(model, optimizer, scaler)
        return lambda batch: (waits.zero_grad(), step(batch))[1]

    assert findings(audited(program)) == []


def test_a_program_that_diverges_applies_no_overflow() -> None:
    """Its weights are infinite in the end though every infinite gradient was skipped."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        step, done = loop()(model, optimizer, scaler), [0]

        def diverges(batch: Tensor) -> None:
            step(batch)
            done[0] += 1
            if done[0] == 5 and scaler.get_scale() < 1000.0:  # only in the rehearsal
                with torch.no_grad():
                    next(model.parameters()).fill_(torch.inf)

        return diverges

    assert "overflow-applied" not in findings(audited(program))


def test_a_step_that_comes_after_the_last_iteration_hides_no_overflow() -> None:
    """Gradients of many iterations are added up: none of what is watched uses those that overflow."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        done = [0]

        def step(batch: Tensor) -> None:
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            if done[0] % 8 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            done[0] += 1

        return step

    assert findings(audited(program)) == []


def test_a_change_that_hides_an_overflow_is_told_with_it() -> None:
    """That it commutes with the loss scale is no excuse here."""

    def between(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        del scaler
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)

    report = audited(loop(between=between))
    told = [(one.rule, one.follows_from) for one in report.diagnostics if one.rule != "initial-loss-scale-unsuitable"]
    assert told == [("overflow-hidden", None), ("scaled-gradients-modified", "overflow-hidden")]
