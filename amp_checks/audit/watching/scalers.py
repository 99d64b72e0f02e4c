"""Loss scalers of a run: what they scale, unscale, step and skip."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from amp_checks.audit.places import called_by_torch, user_frame, user_function
from amp_checks.audit.watching import scaling
from amp_checks.audit.watching.arithmetic import computes_with
from amp_checks.audit.watching.events import (
    LossScaled,
    LossScaleRead,
    ScalerMade,
    ScalerRaised,
    ScalerStep,
    ScalerUpdated,
    Unscaled,
)
from amp_checks.audit.watching.gradients import Gradient, State
from amp_checks.audit.watching.ops import OpWatch
from amp_checks.audit.watching.optimizers import OptimizerWatch
from amp_checks.audit.watching.state import RunState, around
from amp_checks.core import first_line
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches


class ScalerWatch:
    """What scalers do.

    Args:
        scales: the loss scale after each update, of a run that is to be followed.
    """

    def __init__(self, state: RunState, ops: OpWatch, optimizers: OptimizerWatch, scales: Sequence[float]) -> None:
        self._state = state
        self._ops = ops
        self._optimizers = optimizers
        self._scales = scales
        self._stepped: list[Any] = []
        self._idle: list[Any] = []
        self._errors: list[Exception] = []

    def install(self, patches: Patches) -> None:
        """See what the program calls."""
        for name, make in (
            ("__init__", self._made),
            ("scale", self._scaled),
            ("unscale_", self._unscaled),
            ("step", self._steps),
            ("update", self._updated),
            ("get_scale", self._asked),
            ("load_state_dict", self._loaded),
        ):
            patches.replace(torch.amp.GradScaler, name, around(self._noting_errors(make)))

    def _noting_errors(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler; what it raises is noted, as the program may catch it."""

        def noting(*args: Any, **kwargs: Any) -> Any:
            try:
                return handler(*args, **kwargs)
            except Exception as error:
                if error not in self._errors:
                    self._errors.append(error)
                    text = f"{type(error).__name__}: {first_line(error)}"
                    self._state.emit(ScalerRaised(*self._state.here(), text))
                raise

        return noting

    def _made(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        original(scaler, *args, **kwargs)
        state = self._state
        asked = bool(kwargs.get("enabled", args[5] if len(args) > 5 else True))
        device = str(kwargs.get("device", args[0] if args else "cuda"))
        state.scalers.append(scaler)
        state.emit(ScalerMade(*state.here(), asked, scaler.is_enabled(), device, len(state.scalers) - 1))

    def _loaded(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scaler, *args, **kwargs)
        known = (number for number, one in enumerate(self._state.scalers) if one is scaler)
        self._state.trace.restored_scalers |= set(known)
        return result

    def _asked(self, original: Any, scaler: Any) -> Any:
        place = user_frame()
        if not self._state.quiet and place is not None and not called_by_torch() and computes_with(place):
            self._state.emit(LossScaleRead(*self._state.here(place), user_function()))
        return original(scaler)

    def _scaled(self, original: Any, scaler: Any, losses: Any) -> Any:
        outputs = original(scaler, losses)
        if scaler.is_enabled():
            state = self._state
            with state.quietly():
                scale = scaler.get_scale()
                found = list(scaling.tensors(losses))
                already = next((one for loss in found if (one := scaling.scale_of(loss)) is not None), None)
                scaling.mark(outputs, scale * (already or 1.0))
                state.scaled_twice = state.scaled_twice or already is not None
                dtype = self._ops.computed_in(next(iter(found), None))
                state.emit(LossScaled(*state.here(), dtype, scale, already))
        return outputs

    def _unscaled(self, original: Any, scaler: Any, optimizer: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer)
        by_user, state = not called_by_torch(), self._state
        with state.quiet_ops():
            result = original(scaler, optimizer)
        if by_user:
            found = self._optimizers.gradients_of(optimizer)
            self._ops.uses.replaced(found)
            state.emit(Unscaled(*state.here(), _plain(found), _undone(found)))
            number = self._optimizers.number(optimizer)
            for gradient in found:
                if gradient.parameter.grad is not None:
                    gradient.state = State.UNSCALED
                    gradient.unscaled_by = number if gradient.unscaled_by is None else gradient.unscaled_by
            self._looked(found, private.unscaled_found_inf(scaler, optimizer))
        return result

    def _looked(self, found: Sequence[Gradient], infinite: bool) -> None:
        for listener in self._state.listeners:
            listener.scaler_looked(found, infinite)

    def _steps(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        state, optimizers = self._state, self._optimizers
        here, enabled, skipped = state.here(), scaler.is_enabled(), False
        number, found = optimizers.number(optimizer), optimizers.gradients_of(optimizer)
        self._ops.uses.replaced(found)
        plain_at, undone_at = (_plain(found), _undone(found)) if enabled else (None, None)
        carried = next((gradient.name for gradient in found if gradient.carried), None)
        with state.quiet_ops():
            scale = scaler.get_scale()
        seen = _before_step(found, number, scale) if enabled else {}
        closure = enabled and any(map(callable, (*args, *kwargs.values())))
        if enabled:
            optimizers.tell_cleared(found)
        optimizers.in_scaler = True
        try:
            with state.quiet_ops():
                result = original(scaler, optimizer, *args, **kwargs)
            skipped = enabled and private.unscaled_found_inf(scaler, optimizer)
        finally:
            optimizers.in_scaler = False
            event = ScalerStep(*here, number, skipped, enabled, plain_at, carried, scale, undone_at, closure=closure)
            state.emit(dataclasses.replace(event, **seen))
        if enabled:
            self._looked(found, skipped)
            self._stepped.append(scaler)
            if skipped:
                optimizers.skipped(number, found)
            optimizers.stepped(found, here[1])
        else:
            optimizers.stepped(found)
            self._idle.append(scaler)
        return result

    def _updated(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        state, scales = self._state, self._state.trace.scales
        sets = (args[0] if args else kwargs.get("new_scale")) is not None
        with state.quiet_ops():
            result = original(scaler, *args, **kwargs)
            if scaler.is_enabled() and len(scales) < len(self._scales):
                original(scaler, new_scale=self._scales[len(scales)])
        if scaler.is_enabled():
            for gradient in self._optimizers.held():
                if gradient.state in (State.SCALED, State.UNSCALED) and not gradient.stepped:
                    gradient.updated, gradient.updated_at = True, state.here()[1]
            state.emit(ScalerUpdated(*state.here(), stepped=sets or any(one is scaler for one in self._stepped)))
            with state.quiet_ops():
                scales.append(scaler.get_scale())
            self._stepped = [one for one in self._stepped if one is not scaler]
            state.advance()
        elif any(one is scaler for one in self._idle):
            self._idle = [one for one in self._idle if one is not scaler]
            state.advance()
        return result


def _before_step(found: Sequence[Gradient], number: int, scale: float) -> dict[str, Any]:
    """What a scaler meets that is about to divide these gradients, for that optimizer, by that loss scale."""
    there = [one for one in found if one.parameter.grad is not None and not one.stepped]
    scaled = [one for one in there if one.state is State.SCALED]
    updated = next((one.updated_at for one in scaled if one.updated), None)
    others = [one for one in scaled if one.scale not in (None, scale) and not (one.updated or one.modified)]
    shared = next((one for one in found if one.unscaled_by not in (None, number)), None)
    for gradient in there:
        gradient.unscaled_by = number if gradient.unscaled_by is None else gradient.unscaled_by
    for gradient in (*others, *([shared] if shared is not None else [])):
        gradient.modified = True
    other = (others[0].name, others[0].scale, others[0].scaled_at) if others else None
    return {"updated_at": updated, "other_scale": other, "shared": shared.name if shared is not None else None}


def _undone(found: Iterable[Gradient]) -> str | None:
    """Where the program divided by the loss scale, of gradients that a scaler is to divide by it."""
    undone = [one for one in found if one.undone_at is not None and one.state is State.UNSCALED and not one.stepped]
    for gradient in undone:
        gradient.modified = True
    return undone[0].undone_at if undone else None


def _plain(found: Iterable[Gradient]) -> str | None:
    """Where a loss was differentiated without its scale, of gradients that a scaler is to divide by it."""
    plain = [gradient for gradient in found if gradient.plain is not None]
    for gradient in plain:
        gradient.modified = True
    return plain[0].plain if plain else None
