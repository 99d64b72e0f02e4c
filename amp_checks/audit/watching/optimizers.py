"""Optimizers and schedulers of a run: which gradients a step uses, and what it does to the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amp_checks.audit.places import called_by_torch, line, user_frame
from amp_checks.audit.watching import manual_scaling, readable
from amp_checks.audit.watching.events import GradientsCleared, ManualLossScale, OptimizerStep, SchedulerStep
from amp_checks.audit.watching.gradients import Gradient, State, cleared_at
from amp_checks.audit.watching.state import RunState, around
from amp_checks.audit.watching.uses import TensorUses
from amp_checks.torch_api.dtypes import LOW
from amp_checks.torch_api.patching import Patches


class OptimizerWatch:
    """What optimizers do.

    Args:
        skips: for each optimizer, how many of its first steps are to be undone, to follow a run that skipped them.

    Attributes:
        known: the optimizers, in the order in which they were made.
        in_scaler: whether a scaler steps one.
    """

    def __init__(self, state: RunState, uses: TensorUses, skips: Mapping[int, int]) -> None:
        self._state = state
        self._uses = uses
        self._skips = skips
        self.known: list[torch.optim.Optimizer] = []
        self.in_scaler = False
        self._taken: dict[int, int] = {}
        self._real: set[int] = set()
        self._stepped_in: dict[int, int] = {}
        self._since_schedule: dict[int, list[int]] = {}
        self._undo: list[tuple[Any, list[tuple[Tensor, Tensor]]] | None] = []
        self._before: list[tuple[str, Tensor]] = []

    def install(self, patches: Patches) -> None:
        """See what the program calls."""
        patches.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.callback(register_optimizer_step_post_hook(lambda optimizer, *_: self._after_step(optimizer)).remove)
        patches.replace(torch.optim.Optimizer, "__init__", around(self._made))
        patches.replace(torch.optim.Optimizer, "zero_grad", around(self._zeroed))
        patches.replace(torch.nn.Module, "zero_grad", around(self._zeroed))
        schedulers = [lr_scheduler.LRScheduler]
        for cls in schedulers:
            schedulers += [sub for sub in cls.__subclasses__() if sub not in schedulers]
            if "step" in vars(cls):
                patches.replace(cls, "step", around(self._scheduled))

    @property
    def stepped_really(self) -> bool:
        """Whether any has taken a step, that no scaler skipped."""
        return bool(self._real)

    def number(self, optimizer: Any) -> int:
        """Which optimizer it is, in the order in which they were made; one that wraps another is that other."""
        groups = getattr(optimizer, "param_groups", None)
        for number, known in enumerate(self.known):
            if known is optimizer or (groups is not None and getattr(known, "param_groups", None) is groups):
                return number
        self.known.append(optimizer)
        number = len(self.known) - 1
        self._state.book.know({f"optimizer[{number}].{n}": p for n, p in enumerate(readable.parameters_of(optimizer))})
        return number

    def gradients_of(self, optimizer: Any) -> list[Gradient]:
        """The gradients of an optimizer's parameters."""
        self.number(optimizer)
        return self._state.book.of(readable.parameters_of(optimizer))

    def skipped(self, number: int, found: Sequence[Gradient]) -> None:
        """A scaler has skipped a step."""
        state, parameters = self._state, self._state.trace.parameters
        state.just_skipped = True
        if number not in self._real:
            state.trace.first_real[number] = state.trace.first_real.get(number, 0) + 1
        self._since_schedule.setdefault(number, [0, 0])[1] += 1
        for gradient in found:
            if gradient.parameter.grad is not None and gradient.name in parameters:
                parameters[gradient.name].skipped += 1

    def held(self) -> list[Gradient]:
        """The gradients that an optimizer may step with: of all parameters, where no optimizer is known."""
        gradients = self._state.book.gradients
        own = {id(parameter) for optimizer in self.known for parameter in readable.parameters_of(optimizer)}
        return [gradient for key, gradient in gradients.items() if key in own or not self.known]

    def stepped(self, found: Sequence[Gradient], where: str | None = None) -> None:
        """A step is over, taken or skipped; ``where``: by a scaler, at that line."""
        for gradient in found:
            if gradient.parameter.grad is not None:
                gradient.stepped, gradient.stepped_at = True, where
                gradient.updated = gradient.carried = False
                if gradient.state is State.SCALED:
                    gradient.state = State.UNSCALED

    def _made(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.number(optimizer)

    def _zeroed(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        where = line(user_frame())
        with self._state.quiet_ops():
            result = original(owner, *args, **kwargs)
        is_module = isinstance(owner, torch.nn.Module)
        for gradient in self._state.book.of(owner.parameters() if is_module else readable.parameters_of(owner)):
            gradient.reset(where)
        return result

    def _scheduled(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        by_user = not called_by_torch()
        result = original(scheduler, *args, **kwargs)
        if by_user and not _follows_a_metric(scheduler):
            optimizer = getattr(scheduler, "optimizer", None)
            number = self.number(optimizer) if optimizer is not None else -1
            real, skipped = self._since_schedule.pop(number, [0, 0])
            self._state.emit(SchedulerStep(*self._state.here(), real, skipped))
        return result

    def _before_step(self, optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """An optimizer is about to step, in a scaler or not.

        Returns:
            None; or, for a step that is given a closure, the arguments with that closure watched: its backward makes
            the gradients of the step, so the step begins where its first call ends.
        """
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        if not callable(closure):
            self._begin(optimizer)
            return None
        self._state.quiet = True
        watched = self._watched(closure, optimizer)
        if len(arguments) > 1:
            return (arguments[0], watched, *arguments[2:]), named
        return arguments, {**named, "closure": watched}

    def _watched(self, closure: Callable[[], Any], optimizer: Any) -> Callable[[], Any]:
        state, calls = self._state, 0

        def watched() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1 and state.nest_depth:  # the step has moved weights since the last call
                with state.quietly():
                    for gradient in self.gradients_of(optimizer):
                        self._uses.rewrote(gradient.name, None)
            state.quiet = False
            try:
                value = closure()
            finally:
                state.quiet = True
            if calls == 1:
                self._begin(optimizer)
            return value

        return watched

    def _begin(self, optimizer: Any) -> None:
        state = self._state
        with state.quietly():
            number, found = self.number(optimizer), self.gradients_of(optimizer)
            if self._stepped_in.get(number) == state.step and not state.trace.scales:
                state.advance()  # it has a scaler that is never updated, which would end an iteration
            self._stepped_in[number] = state.step
            self._uses.replaced(found)
            manual = manual_scaling.found(found)
            if manual is None and not any(gradient.state is State.PLAIN for gradient in found):  # masters
                manual = manual_scaling.found(state.book.gradients.values(), copies=True)
                manual = manual if manual is not None and manual[1] else None
            if manual is not None:
                state.emit(ManualLossScale(*state.here(), *manual))
            if not self.in_scaler:
                self.tell_cleared(found)
                self._bypasses(found)
            infinite = getattr(optimizer, "found_inf", None)
            if infinite is not None and bool(infinite.item()):
                self._undo.append(None)
            else:
                self._take(optimizer, number, found)
        state.quiet = True
        state.steps_in_region = state.enabled_region is not None

    def tell_cleared(self, found: Sequence[Gradient]) -> None:
        """Tell of a step whose gradients the program has cleared."""
        state = self._state
        with state.quietly():
            where = cleared_at(found)
        if where is not None:
            state.emit(GradientsCleared(state.step, where, state.module))

    def _bypasses(self, found: list[Gradient]) -> None:
        """The program steps an optimizer, with gradients that may be a scaler's."""
        state = self._state
        there = [gradient for gradient in found if gradient.parameter.grad is not None]
        again = next((one.stepped_at for one in there if one.stepped and one.stepped_at is not None), None)
        for gradient in there:
            twice = gradient.stepped and gradient.stepped_at is not None
            if gradient.state in (State.SCALED, State.UNSCALED) and (twice or not gradient.stepped):
                state.trace.bypassed.add(gradient.name)
                gradient.modified = gradient.modified or gradient.state is State.SCALED
        # What the program unscaled by itself it may step with by itself: whether it sees an overflow is tried.
        states = {gradient.state for gradient in there if gradient.undone_at is None}
        carried = next((gradient.name for gradient in found if gradient.carried), None)
        state.emit(OptimizerStep(*state.here(), State.SCALED in states, State.UNSCALED in states, carried, again))

    def _take(self, optimizer: Any, number: int, found: list[Gradient]) -> None:
        taken = self._taken[number] = self._taken.get(number, 0) + 1
        if taken <= self._skips.get(number, 0):
            state = copy.deepcopy(optimizer.state_dict())
            self._undo.append((state, [(g.parameter, g.parameter.detach().clone()) for g in found]))
            return
        self._undo.append(None)
        for listener in self._state.listeners:
            listener.step_starts(optimizer, found)
        if number not in self._real:
            self._keep_gradients(optimizer, found)
        self._real.add(number)
        self._since_schedule.setdefault(number, [0, 0])[0] += 1
        self._state.just_skipped = False
        for gradient in found:
            facts = self._state.trace.parameters.get(gradient.name)
            if facts is None or gradient.parameter.grad is None:
                continue
            facts.stepped += 1
            if facts.dtype in LOW:
                self._before.append((gradient.name, gradient.parameter.detach().clone()))

    def _keep_gradients(self, optimizer: Any, found: list[Gradient]) -> None:
        trace, scale = self._state.trace, getattr(optimizer, "grad_scale", None)
        for gradient in found:
            value = gradient.parameter.grad
            if value is None:
                continue
            if gradient.modified:
                trace.modified.add(gradient.name)
            raw = readable.exact(gradient.raw) if gradient.raw is not None else None
            if raw is not None:
                trace.raw_gradients[gradient.name] = raw
            if (value := readable.exact(value)) is None:
                continue
            value = value / scale.double().item() if scale is not None else value
            trace.gradients.put(gradient.name, value, or_from=trace.raw_gradients)

    def _after_step(self, optimizer: Any) -> None:
        state = self._state
        state.steps_in_region = False
        state.quiet = self.in_scaler
        with state.quietly():
            found = self.gradients_of(optimizer)
            undo = self._undo.pop() if self._undo else None
            if undo is not None:
                for parameter, value in undo[1]:
                    parameter.copy_(value)
                optimizer.load_state_dict(undo[0])
            self._note_moved(found)
            if state.nest_depth:
                where = line(user_frame())
                for gradient in found:
                    self._uses.rewrote(gradient.name, where)
            if not self.in_scaler:
                self.stepped(found)
                if not any(scaler.is_enabled() for scaler in state.scalers):
                    state.advance()

    def _note_moved(self, found: list[Gradient]) -> None:
        now = {gradient.name: gradient.parameter for gradient in found}
        for name, before in self._before:
            gradient = now[name].grad
            value = readable.exact(gradient) if gradient is not None else None
            there = value != 0 if value is not None else torch.zeros((), dtype=torch.bool)
            if count := int(there.sum()):
                moved = ((now[name] != before).cpu() & there).sum().item() / count
                self._state.trace.parameters[name].moved = moved
        self._before.clear()


def _follows_a_metric(scheduler: Any) -> bool:
    """Whether it counts evaluations, not steps."""
    return isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
