"""Each run of the autograd engine: what is differentiated, and which gradients that writes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from amp_checks.audit.watching import readable, scaling
from amp_checks.audit.watching.events import Backward
from amp_checks.audit.watching.ops import OpWatch
from amp_checks.audit.watching.optimizers import OptimizerWatch
from amp_checks.audit.watching.state import RunState, around
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches


class BackwardWatch:
    """What is differentiated.

    Attributes:
        losses: of each backward, iteration, value and loss scale.
    """

    def __init__(self, state: RunState, ops: OpWatch, optimizers: OptimizerWatch) -> None:
        self._state = state
        self._ops = ops
        self._optimizers = optimizers
        self.losses: list[tuple[int, torch.Tensor, float]] = []

    def install(self, patches: Patches) -> None:
        """See what the program calls."""
        patches.replace(*private.backward_engine(), around(self._run))

    def _run(
        self, original: Any, roots: Any, gradients: Any, retain_graph: Any, create_graph: Any, *args: Any, **kw: Any
    ) -> Any:
        state, accumulates = self._state, bool(kw.get("accumulate_grad"))
        if state.backward_depth:  # what runs inside a backward is part of it
            return original(roots, gradients, retain_graph, create_graph, *args, **kw)
        with state.quietly():
            scales = [scaling.scale_of(root) for root in roots]
            inputs = tuple(args[0]) if args and not accumulates else ()
            hands = not accumulates and not create_graph and bool(state.book.of(inputs))
            event = self._starts(roots, scales) if accumulates or hands else None
            factors = self._ops.uses.factors_of(next(iter(roots), None))
            if accumulates:
                self._ops.uses.replaced(state.book.gradients.values())
                state.book.before_backward()
                for listener in state.listeners:
                    gradients = listener.initial_gradients(roots, gradients)
        state.backward_depth += 1
        try:
            found = original(roots, gradients, retain_graph, create_graph, *args, **kw)
            for listener in () if accumulates else state.listeners:
                found = listener.grad_gave(roots, found)
        except BaseException:
            state.trace.events += [event] if event is not None else []
            raise
        finally:
            state.backward_depth -= 1
        with state.quietly():
            if event is not None and accumulates:
                state.emit(self._accumulated(event, scales, factors))
            elif event is not None:
                state.emit(event)
                self._hand(inputs, found, _first(scales), event.where)
            elif create_graph and (scale := _first(scales)) is not None:
                self._ops.uses.inner = {one.data_ptr(): (one, scale) for one in scaling.tensors(found)}
        return found

    def _starts(self, roots: Any, scales: list[float | None]) -> Backward:
        state = self._state
        for loss, scale in zip(roots, scales, strict=True):
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self.losses.append((state.step, loss.detach().clone(), scale or 1.0))
        for listener in state.listeners:
            listener.backward_starts(roots)
        return Backward(
            *state.here(),
            scaled=_first(scales) is not None,
            in_region=state.enabled_region is not None,
            dtype=self._ops.computed_in(next(iter(roots), None)),
        )

    def _accumulated(self, event: Backward, scales: list[float | None], factors: tuple[float, ...]) -> Backward:
        state, scale = self._state, _first(scales)
        twice, state.scaled_twice = state.scaled_twice, False
        onto, after = state.book.after_backward(scale=scale, where=event.where, twice=twice, factors=factors)
        for listener in state.listeners:
            listener.backward_ended(scale)
        if self._ops.enabled:
            self._ops.uses.know_gradients()
        if len(set(scales)) > 1:  # which of them a gradient has is not known
            state.book.forget_raw()
        return dataclasses.replace(event, onto_unscaled=onto, after_update=after)

    def _hand(self, inputs: tuple[Any, ...], results: Any, scale: float | None, where: str | None) -> None:
        """Without an optimizer, what `autograd.grad` gives is all that is known of the use of gradients."""
        state = self._state
        for parameter, result in zip(inputs, results or (), strict=False):
            for gradient in state.book.of((parameter,)) if result is not None else ():
                for listener in state.listeners:
                    listener.grad_gave_gradient(gradient, result, scale)
                gradient.handed = (result, scale, where)
                if not self._optimizers.known and (value := readable.exact(result)) is not None:
                    state.trace.gradients.setdefault(gradient.name, value / (scale or 1.0))


def _first(scales: list[float | None]) -> float | None:
    return next((scale for scale in scales if scale is not None), None)
