"""Faulty scalers: each breaks one promise, which its docstring says, as a plausible slip would.

They override private methods of torch's scaler, since that is where slips are made.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_checks.families.scaler.mutants.rows import mutant
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend


@contextmanager
def _with_scaler(backend: Backend, *, scaler: type[torch.amp.GradScaler]) -> Iterator[Backend]:
    def factory(device: str, /, **settings: Any) -> Any:
        return scaler(device, **settings)

    yield dataclasses.replace(backend, grad_scaler=factory)


def _held(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.grad is not None)


def _state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _bad(optimizer: torch.optim.Optimizer) -> bool:
    gradients = (torch.as_tensor(parameter.grad) for parameter in _held(optimizer))
    dense = (gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients)
    return any(not bool(torch.isfinite(gradient).all()) for gradient in dense)


class _Scaler(torch.amp.GradScaler):
    """`after_skip` is called when a step was skipped."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        bad = _bad(optimizer)
        returned = super().step(optimizer, *args, **kwargs)
        if bad and self.is_enabled():
            with torch.no_grad():
                returned = self.after_skip(optimizer, returned)
        return returned

    def after_skip(self, _: torch.optim.Optimizer, returned: Any) -> Any:
        return returned


class NudgesParameters(_Scaler):
    """A skipped step halves the parameters."""

    def after_skip(self, optimizer: torch.optim.Optimizer, returned: Any) -> Any:
        for parameter in _held(optimizer):
            parameter.mul_(0.5)
        return returned


class NudgesState(_Scaler):
    """A skipped step touches the optimizer's state."""

    def after_skip(self, optimizer: torch.optim.Optimizer, returned: Any) -> Any:
        for value in _state(optimizer):
            value.add_(1)
        return returned


class _Borrows(_Scaler):
    """Changes tensors on a skip, and puts them back when the next step begins."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._borrowed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            for tensor, before in self._borrowed:
                tensor.copy_(before)
        self._borrowed = []
        return super().step(optimizer, *args, **kwargs)

    def after_skip(self, optimizer: torch.optim.Optimizer, returned: Any) -> Any:
        for tensor in self.tensors(optimizer):
            self._borrowed.append((tensor, tensor.detach().clone()))
            tensor.add_(1)
        return returned

    def tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
        yield from _held(optimizer)


class BorrowsParameters(_Borrows):
    """A skipped step changes the parameters until the next step begins."""


class BorrowsState(_Borrows):
    """A skipped step changes the optimizer's state until the next step begins."""

    def tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
        yield from _state(optimizer)


class RestoresScaledGradients(_Scaler):
    """A skipped step leaves the gradients scaled."""

    def after_skip(self, optimizer: torch.optim.Optimizer, returned: Any) -> Any:
        for parameter in _held(optimizer):
            parameter.grad.mul_(self.get_scale())  # type: ignore[union-attr]
        return returned


class StepsOnZero(_Scaler):
    """A bad batch makes a step with zero gradients."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not _bad(optimizer) or not self.is_enabled():
            return super().step(optimizer, *args, **kwargs)
        self.unscale_(optimizer)
        bad = [(parameter, parameter.grad) for parameter in _held(optimizer)]
        for parameter, _ in bad:
            parameter.grad = torch.zeros_like(parameter)
        self._per_optimizer_states[id(optimizer)]["stage"] = torch.amp.grad_scaler.OptState.STEPPED
        optimizer.step()
        for parameter, gradient in bad:
            parameter.grad = gradient
        return None


class ReturnsNothing(torch.amp.GradScaler):
    """The return value of optimizer.step is dropped."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        super().step(optimizer, *args, **kwargs)


class NeverSkips(torch.amp.GradScaler):
    """Steps run whether inf was found or not."""

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> Any:
        return optimizer.step()


class GrowsTwice(torch.amp.GradScaler):
    """The scale grows by the square of growth_factor."""

    def update(self, new_scale: Any = None) -> None:
        self._growth_factor *= self._growth_factor
        super().update(new_scale)
        self._growth_factor **= 0.5


class BacksOffTwice(torch.amp.GradScaler):
    """The scale backs off by the square of backoff_factor."""

    def update(self, new_scale: Any = None) -> None:
        self._backoff_factor *= self._backoff_factor
        super().update(new_scale)
        self._backoff_factor **= 0.5


class KeepsTrackerOnSkip(torch.amp.GradScaler):
    """A skip does not start the count of unskipped iterations again."""

    def update(self, new_scale: Any = None) -> None:
        before, scale = self._get_growth_tracker(), self.get_scale()
        super().update(new_scale)
        if self.is_enabled() and self.get_scale() < scale:
            self._growth_tracker.fill_(before)  # type: ignore[union-attr]


class AllowsUnscaleTwice(torch.amp.GradScaler):
    """A second unscale_ is passed over in silence."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self._per_optimizer_states[id(optimizer)]["stage"].name == "READY":
            super().unscale_(optimizer)


class _Unscales(torch.amp.GradScaler):
    """Unscales by what `inverse` makes of the inverse scale."""

    def inverse(self, _: torch.optim.Optimizer, inv_scale: torch.Tensor) -> torch.Tensor:
        return inv_scale

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> Any:
        # With float16 allowed the gradients are those of a fused optimizer: checked, and divided by 1.
        factor = inv_scale if allow_fp16 else self.inverse(optimizer, inv_scale)
        return super()._unscale_grads_(optimizer, factor, found_inf, allow_fp16)


class UnscalesByLastScale(_Unscales):
    """The step after a backoff unscales by the scale from before it."""

    _stale: float | None = None

    def update(self, new_scale: Any = None) -> None:
        before = self.get_scale()
        super().update(new_scale)
        self._stale = before if self.get_scale() < before else None

    def inverse(self, _: torch.optim.Optimizer, inv_scale: torch.Tensor) -> torch.Tensor:
        return inv_scale if self._stale is None else torch.full_like(inv_scale, 1.0 / self._stale)


class UnscalesRoughly(_Unscales):
    """The inverse scale is off by one unit in the last place."""

    def inverse(self, _: torch.optim.Optimizer, inv_scale: torch.Tensor) -> torch.Tensor:
        return inv_scale * (1.0 + 2.0**-23)


class UnscalesGoodRoughly(UnscalesRoughly):
    """The inverse scale is off by one unit in the last place, where every gradient is finite."""

    def inverse(self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor) -> torch.Tensor:
        return inv_scale if _bad(optimizer) else super().inverse(optimizer, inv_scale)


class UnscalesLate(torch.amp.GradScaler):
    """unscale_ leaves the gradients scaled until the step."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        self._multiply(optimizer, self.get_scale())

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        self._multiply(optimizer, 1.0 / self.get_scale())
        return super()._maybe_opt_step(optimizer, *args, **kwargs)

    def _multiply(self, optimizer: torch.optim.Optimizer, factor: float) -> None:
        for parameter in _held(optimizer):
            gradient = torch.as_tensor(parameter.grad)
            (gradient._values() if gradient.is_sparse else gradient).mul_(factor)  # noqa: SLF001


class CopiesWhereDisabled(torch.amp.GradScaler):
    """A disabled scaler's scale gives an equal copy of a tensor."""

    def scale(self, outputs: Any) -> Any:
        given = super().scale(outputs)
        return given.clone() if not self.is_enabled() and isinstance(given, torch.Tensor) else given


class CopiesGradientsWhereDisabled(torch.amp.GradScaler):
    """A disabled scaler's unscale_ puts an equal copy in the place of a gradient."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for parameter in _held(optimizer) if not self.is_enabled() else ():
            parameter.grad = torch.as_tensor(parameter.grad).clone()


class ScalesInPlace(torch.amp.GradScaler):
    """scale multiplies the tensor that it was given, and gives a copy of it."""

    def scale(self, outputs: Any) -> Any:
        scaled = super().scale(outputs)
        if isinstance(outputs, torch.Tensor) and outputs.is_leaf and self.is_enabled():
            with torch.no_grad():
                outputs.copy_(scaled)
        return scaled


class ReplacesGradients(torch.amp.GradScaler):
    """unscale_ puts a new tensor in the place of a gradient."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for parameter in _held(optimizer):
            parameter.grad = torch.as_tensor(parameter.grad).clone()


class CopiesWhatStepReturns(torch.amp.GradScaler):
    """step returns an equal copy of what the optimizer returned."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        return copy.copy(super().step(optimizer, *args, **kwargs))


def _row(name: str, scaler: type[torch.amp.GradScaler], case: str, *killed_by: str, fault: str | None = None) -> Mutant:
    """A row; the fault is what the scaler's docstring says, where no other is given."""
    text = str(scaler.__doc__).rstrip(".")
    plant = functools.partial(_with_scaler, scaler=scaler)
    return mutant(f"scaler-{name}", fault or text[0].lower() + text[1:], plant, case, *killed_by)


ROWS: tuple[Mutant, ...] = (
    _row("nudges-parameters-on-skip", NudgesParameters, "inf-skips", "check_parameters"),
    _row("nudges-state-on-skip", NudgesState, "nan-skips", "check_optimizer_state"),
    _row("restores-scaled-gradients", RestoresScaledGradients, "overflow-skips", "check_gradients"),
    _row("steps-on-zero", StepsOnZero, "minus-inf-skips", "check_step"),
    _row("returns-nothing", ReturnsNothing, "clean-steps", "check_step"),
    _row("never-skips", NeverSkips, "nan-skips", "check_step", "check_parameters", "check_optimizer_state"),
    _row("grows-twice", GrowsTwice, "growth-once", "check_scale"),
    _row("backs-off-twice", BacksOffTwice, "backoff-resets-tracker", "check_scale"),
    _row("keeps-tracker-on-skip", KeepsTrackerOnSkip, "backoff-resets-tracker", "check_growth_tracker"),
    _row("allows-unscale-twice", AllowsUnscaleTwice, "illegal-order", "check_error"),
    _row(
        "optimizer-parameters-nudged",
        NudgesParameters,
        "optimizer-Adam-for-loop",
        "check_skipped_step_leaves_parameters",
        "check_step_after_skip_equals_step_without",
    ),
    _row(
        "optimizer-state-nudged",
        NudgesState,
        "optimizer-Adam-for-loop",
        "check_skipped_step_leaves_optimizer_state",
        "check_step_after_skip_equals_step_without",
        fault="a skipped step touches step counters and moments",
    ),
    _row("borrows-parameters", BorrowsParameters, "optimizer-Adam-for-loop", "check_skipped_step_leaves_parameters"),
    _row("borrows-state", BorrowsState, "optimizer-Adam-for-loop", "check_skipped_step_leaves_optimizer_state"),
    _row(
        "optimizer-gradients-rescaled",
        RestoresScaledGradients,
        "optimizer-Adam-for-loop",
        "check_skipped_step_leaves_unscaled_gradients",
    ),
    _row(
        "unscales-by-last-scale",
        UnscalesByLastScale,
        "optimizer-SGD-for-loop",
        "check_step_after_skip_equals_step_without",
    ),
    _row("unscales-late", UnscalesLate, "bad-in-transposed-gradient", "check_gradient_is_unscaled"),
    _row(
        "unscales-roughly-in-training",
        UnscalesGoodRoughly,
        "optimizer-SGD-for-loop",
        "check_scaled_step_equals_unscaled_step",
    ),
    _row(
        "unscales-roughly",
        UnscalesRoughly,
        "optimizer-SGD-for-loop",
        "check_skipped_step_leaves_unscaled_gradients",
        "check_scaled_step_equals_unscaled_step",
    ),
    _row("copies-where-disabled", CopiesWhereDisabled, "disabled-scale-hands-back", "check_disabled_scale"),
    _row("copies-tensor-where-disabled", CopiesWhereDisabled, "scale-disabled-tensor", "check_scaled_outputs"),
    _row(
        "copies-gradients-where-disabled",
        CopiesGradientsWhereDisabled,
        "disabled-unscale-leaves-gradients",
        "check_disabled_unscale",
    ),
    _row("scales-in-place", ScalesInPlace, "scale-leaves-outputs", "check_scale_leaves_outputs"),
    _row("replaces-gradients", ReplacesGradients, "unscale-keeps-objects", "check_unscale_keeps_objects"),
    _row("copies-what-step-returns", CopiesWhatStepReturns, "step-hands-back", "check_step_hands_back"),
)
