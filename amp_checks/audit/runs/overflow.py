"""An injected overflow: gradients are infinite in one iteration, as they are when the loss scale is too large.

A scaled loss starts from an infinite gradient, so that hooks and custom functions meet it as they would; whatever they
leave is made infinite after backward, so that what follows meets it too. What turns it into finite numbers hides it
from the scaler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.audit.places import Place, line, user_frame
from amp_checks.audit.runs.change import Change
from amp_checks.audit.watching import readable, scaling
from amp_checks.audit.watching.events import OverflowHidden
from amp_checks.audit.watching.gradients import Gradient, State
from amp_checks.audit.watching.state import Listener
from amp_checks.audit.watching.watch import Watch
from amp_checks.torch_api import private


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InjectedOverflow(Change):
    """The gradients of scaled losses overflow in iteration ``at``: the second, after one real step."""

    at: int = 1
    words: ClassVar[str] = "an overflow injected"
    may_exit: ClassVar[bool] = True

    def around_loop(self, watch: Watch) -> AbstractContextManager[object]:
        overflow = _Overflow(watch, self.at)
        watch.state.listeners.append(overflow)
        return overflow


class _Overflow(TorchDispatchMode, Listener):
    """The overflow, and the last line of user code that made finite numbers of it."""

    def __init__(self, watch: Watch, at: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._state = watch.state
        self._at = at
        self._starts_at: Place | None = None
        self._hidden_at: Place | None = None
        self._in_backward = False
        self._is_over = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if self._state.step > self._at and not self._is_over:
            self._is_over = True
            self._look_at_weights()
        if self._state.step != self._at or self._state.quiet:
            return func(*args, **(kwargs or {}))
        with self._state.quietly():
            overflowed = _overflowed(args)
        out = func(*args, **(kwargs or {}))
        if overflowed and not ((place := user_frame()) == self._starts_at and self._in_backward):
            with self._state.quietly():
                made = _floating(args[:1] if private.is_mutating(func) else (out,))
                if made and all(map(_is_finite, made)):
                    self._hidden_at = place
        return out

    def _look_at_weights(self) -> None:
        """Weights that are not finite once the iteration is over: a step took the overflow, or the program did."""
        with self._state.quietly():
            weights = self._state.training.named_parameters().values()
            if not all(map(readable.is_finite, weights)):
                self._state.trace.took_overflow = True

    def initial_gradients(self, roots: Any, gradients: Any) -> Any:
        if self._state.step != self._at or all(scaling.scale_of(root) is None for root in roots):
            return gradients
        self._starts_at, self._in_backward, self._hidden_at = user_frame(), True, None
        return tuple(None if gradient is None else gradient * torch.inf for gradient in gradients)

    def grad_gave_gradient(self, gradient: Gradient, result: Tensor, scale: float | None) -> None:
        gradient.injected = self._state.step == self._at and scale is not None
        if gradient.injected:
            result.fill_(torch.inf)

    def backward_ended(self, scale: float | None) -> None:
        """Make all scaled gradients infinite.

        It is hidden where one optimizer, or all, have nothing but finite ones left.
        """
        if self._state.step != self._at or scale is None:
            return
        self._in_backward = False
        optimizers = [self._watch.optimizers.gradients_of(optimizer) for optimizer in self._watch.optimizers.known]
        groups = [
            [one for one in group if one.parameter.grad is not None and one.state is State.SCALED]
            for group in (*optimizers, self._state.book.gradients.values())
        ]
        hidden = any(group and all(map(_holds_finite, group)) for group in groups)
        for gradient in (one for group in groups for one in group):
            value = gradient.parameter.grad
            assert value is not None
            if value.layout is torch.strided:  # others have no such kernel, and are what backward made of infinity
                value.fill_(torch.inf)
            gradient.injected = True
        where, self._hidden_at = self._hidden_at, None
        if hidden and where is not None:
            self._state.emit(OverflowHidden(*self._state.here(), hidden_at=line(where), in_backward=True))

    def scaler_looked(self, gradients: Sequence[Gradient], infinite: bool) -> None:
        were = [gradient for gradient in gradients if gradient.injected and gradient.parameter.grad is not None]
        for gradient in were:
            gradient.injected = False
        if were and not infinite:
            with self._state.quietly():
                zero = all(gradient.is_zero() for gradient in were)
            self._state.emit(OverflowHidden(*self._state.here(), hidden_at=line(self._hidden_at), zero=zero))

    def step_starts(self, optimizer: Any, gradients: Sequence[Gradient]) -> None:
        del optimizer
        self._state.trace.took_overflow |= _overflowed([gradient.parameter.grad for gradient in gradients])


def _overflowed(values: Any) -> bool:
    return any(not _is_finite(value) for value in _floating(values))


def _holds_finite(gradient: Gradient) -> bool:
    found = _floating(gradient.parameter.grad)
    return bool(found) and all(map(_is_finite, found))


def _floating(values: Any) -> list[Tensor]:
    read = (readable.values(value) for value in scaling.tensors(values))
    return [value for value in read if value is not None and value.is_floating_point()]


def _is_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())
