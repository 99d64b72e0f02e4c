"""Faulty scalers, by hand: each breaks one promise, as a plausible slip would.

They override private methods of torch's scaler, since that is where slips are made.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from amp_checks.core import Backend
from amp_checks.suite.planting import Mutant


@contextmanager
def _with_scaler(backend: Backend, *, scaler: type[torch.amp.GradScaler]) -> Iterator[Backend]:
    def factory(device: str, /, **settings: Any) -> Any:
        return scaler(device, **settings)

    yield dataclasses.replace(backend, grad_scaler=factory)


def planted(scaler: type[torch.amp.GradScaler]) -> Callable[[Backend], AbstractContextManager[Backend]]:
    """Plant a scaler class in place of torch's."""
    return functools.partial(_with_scaler, scaler=scaler)


def _held(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.grad is not None)


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
    def after_skip(self, optimizer: torch.optim.Optimizer, returned: Any) -> Any:
        for parameter in _held(optimizer):
            parameter.mul_(0.5)
        return returned


class NudgesState(_Scaler):
    def after_skip(self, optimizer: torch.optim.Optimizer, returned: Any) -> Any:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
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
    """Borrows parameters."""


class BorrowsState(_Borrows):
    def tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


class RestoresScaledGradients(_Scaler):
    def after_skip(self, optimizer: torch.optim.Optimizer, returned: Any) -> Any:
        for parameter in _held(optimizer):
            parameter.grad.mul_(self.get_scale())  # type: ignore[union-attr]
        return returned


class StepsOnZero(_Scaler):
    """Instead of skipping, clears the gradients and steps."""

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
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        super().step(optimizer, *args, **kwargs)


class NeverSkips(torch.amp.GradScaler):
    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> Any:
        return optimizer.step()


class GrowsTwice(torch.amp.GradScaler):
    def update(self, new_scale: Any = None) -> None:
        self._growth_factor *= self._growth_factor
        super().update(new_scale)
        self._growth_factor **= 0.5


class BacksOffTwice(torch.amp.GradScaler):
    def update(self, new_scale: Any = None) -> None:
        self._backoff_factor *= self._backoff_factor
        super().update(new_scale)
        self._backoff_factor **= 0.5


class KeepsTrackerOnSkip(torch.amp.GradScaler):
    def update(self, new_scale: Any = None) -> None:
        before, scale = self._get_growth_tracker(), self.get_scale()
        super().update(new_scale)
        if self.is_enabled() and self.get_scale() < scale:
            self._growth_tracker.fill_(before)  # type: ignore[union-attr]


class AllowsUnscaleTwice(torch.amp.GradScaler):
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self._per_optimizer_states[id(optimizer)]["stage"].name == "READY":
            super().unscale_(optimizer)


class UnscalesByLastScale(torch.amp.GradScaler):
    """After a backoff, unscales once by the scale from before it."""

    _stale: float | None = None

    def update(self, new_scale: Any = None) -> None:
        before = self.get_scale()
        super().update(new_scale)
        self._stale = before if self.get_scale() < before else None

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> Any:
        if self._stale is not None and not allow_fp16:
            inv_scale = torch.full_like(inv_scale, 1.0 / self._stale)
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)


class UnscalesRoughly(torch.amp.GradScaler):
    """The reciprocal is off by one unit in the last place."""

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> Any:
        if not allow_fp16:
            inv_scale = inv_scale * (1.0 + 2.0**-23)
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)


class UnscalesGoodRoughly(UnscalesRoughly):
    """As above, but a batch with a bad gradient is unscaled as it should be."""

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16 or _bad(optimizer))


class UnscalesLate(torch.amp.GradScaler):
    """``unscale_`` only looks for inf; the gradients are divided when the step is made."""

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


_PROGRAM = ("check_step", "check_parameters", "check_optimizer_state")

ROWS: tuple[Mutant, ...] = (
    Mutant(
        id="scaler-nudges-parameters-on-skip",
        family="scaler",
        fault="a skipped step halves the parameters",
        plant=planted(NudgesParameters),
        case="inf-skips",
        killed_by=("check_parameters",),
    ),
    Mutant(
        id="scaler-nudges-state-on-skip",
        family="scaler",
        fault="a skipped step touches the optimizer's state",
        plant=planted(NudgesState),
        case="nan-skips",
        killed_by=("check_optimizer_state",),
    ),
    Mutant(
        id="scaler-restores-scaled-gradients",
        family="scaler",
        fault="a skipped step leaves the gradients scaled",
        plant=planted(RestoresScaledGradients),
        case="overflow-skips",
        killed_by=("check_gradients",),
    ),
    Mutant(
        id="scaler-steps-on-zero",
        family="scaler",
        fault="a bad batch makes a step with zero gradients",
        plant=planted(StepsOnZero),
        case="minus-inf-skips",
        killed_by=("check_step",),
    ),
    Mutant(
        id="scaler-returns-nothing",
        family="scaler",
        fault="the return value of optimizer.step is dropped",
        plant=planted(ReturnsNothing),
        case="clean-steps",
        killed_by=("check_step",),
    ),
    Mutant(
        id="scaler-never-skips",
        family="scaler",
        fault="steps run whether inf was found or not",
        plant=planted(NeverSkips),
        case="nan-skips",
        killed_by=_PROGRAM,
    ),
    Mutant(
        id="scaler-grows-twice",
        family="scaler",
        fault="the scale grows by the square of growth_factor",
        plant=planted(GrowsTwice),
        case="growth-once",
        killed_by=("check_scale",),
    ),
    Mutant(
        id="scaler-backs-off-twice",
        family="scaler",
        fault="the scale backs off by the square of backoff_factor",
        plant=planted(BacksOffTwice),
        case="backoff-resets-tracker",
        killed_by=("check_scale",),
    ),
    Mutant(
        id="scaler-keeps-tracker-on-skip",
        family="scaler",
        fault="a skip does not start the count of unskipped iterations again",
        plant=planted(KeepsTrackerOnSkip),
        case="backoff-resets-tracker",
        killed_by=("check_growth_tracker",),
    ),
    Mutant(
        id="scaler-allows-unscale-twice",
        family="scaler",
        fault="a second unscale_ is passed over in silence",
        plant=planted(AllowsUnscaleTwice),
        case="illegal-order",
        killed_by=("check_error",),
    ),
    Mutant(
        id="scaler-optimizer-parameters-nudged",
        family="scaler",
        fault="a skipped step halves the parameters",
        plant=planted(NudgesParameters),
        case="optimizer-Adam-for-loop",
        killed_by=("check_skipped_step_leaves_parameters", "check_step_after_skip_equals_step_without"),
    ),
    Mutant(
        id="scaler-optimizer-state-nudged",
        family="scaler",
        fault="a skipped step touches step counters and moments",
        plant=planted(NudgesState),
        case="optimizer-Adam-for-loop",
        killed_by=("check_skipped_step_leaves_optimizer_state", "check_step_after_skip_equals_step_without"),
    ),
    Mutant(
        id="scaler-borrows-parameters",
        family="scaler",
        fault="a skipped step changes the parameters until the next step begins",
        plant=planted(BorrowsParameters),
        case="optimizer-Adam-for-loop",
        killed_by=("check_skipped_step_leaves_parameters",),
    ),
    Mutant(
        id="scaler-borrows-state",
        family="scaler",
        fault="a skipped step changes the optimizer's state until the next step begins",
        plant=planted(BorrowsState),
        case="optimizer-Adam-for-loop",
        killed_by=("check_skipped_step_leaves_optimizer_state",),
    ),
    Mutant(
        id="scaler-optimizer-gradients-rescaled",
        family="scaler",
        fault="a skipped step leaves the gradients scaled",
        plant=planted(RestoresScaledGradients),
        case="optimizer-Adam-for-loop",
        killed_by=("check_skipped_step_leaves_unscaled_gradients",),
    ),
    Mutant(
        id="scaler-unscales-by-last-scale",
        family="scaler",
        fault="the step after a backoff unscales by the scale from before it",
        plant=planted(UnscalesByLastScale),
        case="optimizer-SGD-for-loop",
        killed_by=("check_step_after_skip_equals_step_without",),
    ),
    Mutant(
        id="scaler-unscales-late",
        family="scaler",
        fault="unscale_ leaves the gradients scaled until the step",
        plant=planted(UnscalesLate),
        case="bad-in-transposed-gradient",
        killed_by=("check_gradient_is_unscaled",),
    ),
    Mutant(
        id="scaler-unscales-roughly-in-training",
        family="scaler",
        fault="the inverse scale is off by one unit in the last place, where every gradient is finite",
        plant=planted(UnscalesGoodRoughly),
        case="optimizer-SGD-for-loop",
        killed_by=("check_scaled_step_equals_unscaled_step",),
    ),
    Mutant(
        id="scaler-unscales-roughly",
        family="scaler",
        fault="the inverse scale is off by one unit in the last place",
        plant=planted(UnscalesRoughly),
        case="optimizer-SGD-for-loop",
        killed_by=("check_skipped_step_leaves_unscaled_gradients", "check_scaled_step_equals_unscaled_step"),
    ),
)
