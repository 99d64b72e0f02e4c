"""What the watches of one run share: how far the run is, its trace, and who listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVarTuple

import torch
from torch import Tensor

from amp_checks.audit.case import Training
from amp_checks.audit.places import Place, line, user_frame
from amp_checks.audit.watching.events import Event, RegionEntered
from amp_checks.audit.watching.gradients import Book, Gradient
from amp_checks.audit.watching.trace import Trace
from amp_checks.torch_api import private

Details = TypeVarTuple("Details")


def around(handler: Callable[..., Any]) -> Callable[[Any], Any]:
    """Makes replacements of functions: ``handler(original, *arguments)``."""

    def make(original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return handler(original, *args, **kwargs)

        return replacement

    return make


class Listener:
    """What a change or a probe does as a run goes on: all listeners are called, each does nothing by default."""

    def backward_starts(self, roots: Any) -> None:
        """These losses are about to be differentiated for parameters."""

    def initial_gradients(self, roots: Any, gradients: Any) -> Any:
        """What the backward of these losses starts from; called from the user's line."""
        del roots
        return gradients

    def grad_gave(self, roots: Any, results: Any) -> Any:
        """What ``autograd.grad`` gives of these losses."""
        del roots
        return results

    def grad_gave_gradient(self, gradient: Gradient, result: Tensor, scale: float | None) -> None:
        """``autograd.grad`` gave a parameter's gradient, of a loss under that scale."""

    def backward_ended(self, scale: float | None) -> None:
        """Backward has accumulated into gradients, under that scale."""

    def scaler_looked(self, gradients: Sequence[Gradient], infinite: bool) -> None:
        """A scaler has looked at these gradients, and found some infinite or not."""

    def step_starts(self, optimizer: Any, gradients: Sequence[Gradient]) -> None:
        """An optimizer is about to step, really."""


class RunState:
    """How far a run is, and what is known of it by all who watch it.

    Attributes:
        step: the iteration, from 0; -1 while the case is being built.
        backward_depth: how many runs of the autograd engine are under way, one within the other.
        quiet: whether the ops that run are not the user's.
        regions, nest_depth: the autocast regions that are entered, and how many enterings were not left.
        modules, functions: names of the modules and custom functions whose forward runs, the innermost last.
        scalers: in the order in which they were made.
        just_skipped: whether the last step was skipped.
        scaled_twice: whether a loss was scaled twice since the last backward.
        steps_in_region: whether an optimizer's step is under way, inside an enabled region.
        advance: called where an iteration ends, in a program whose loop is not ours.
    """

    def __init__(self) -> None:
        self.trace = Trace()
        self.book = Book()
        self.listeners: list[Listener] = []
        self.step = -1
        self.backward_depth = 0
        self.quiet = False
        self.regions: list[RegionEntered] = []
        self.nest_depth = 0
        self.modules: list[str] = []
        self.functions: list[str] = []
        self.scalers: list[Any] = []
        self.just_skipped = False
        self.scaled_twice = False
        self.steps_in_region = False
        self.advance: Callable[[], None] = lambda: None
        self.training: Training
        self._emitted: set[tuple[Any, ...]] = set()

    @contextmanager
    def quiet_ops(self) -> Iterator[None]:
        """No op inside is the user's."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """No op inside is the user's, and no function mode is asked about it."""
        with self.quiet_ops(), private.no_function_modes(), torch.no_grad():
            yield

    @property
    def module(self) -> str | None:
        """The module whose forward runs."""
        return self.modules[-1] if self.modules else None

    @property
    def function(self) -> str | None:
        """The custom autograd function whose forward or backward runs."""
        if not self.backward_depth:
            return self.functions[-1] if self.functions else None
        node = private.running_node()
        custom = private.custom_function_of(node) if node is not None else None
        return custom.__name__ if custom is not None else None

    @property
    def enabled_region(self) -> RegionEntered | None:
        """The innermost autocast region, where it is enabled."""
        return self.regions[-1] if self.regions and self.regions[-1].enabled else None

    def here(self, place: Place | None = None) -> tuple[int, str | None, str | None]:
        """What an `Event` begins with: iteration, line (of that place, or the user's) and module."""
        return self.step, line(place or user_frame()), self.module

    def emit(self, event: Event) -> None:
        """Note an event."""
        self.trace.events.append(event)

    def emit_once(
        self,
        kind: Callable[[int, str | None, str | None, *Details], Event],
        *details: *Details,
        key: object = None,
        place: Place | None = None,
    ) -> None:
        """Note an event at that place, or the user's, where it is the first of its kind and key there."""
        place = place or user_frame()
        if (kind, place, key) not in self._emitted:
            self._emitted.add((kind, place, key))
            self.emit(kind(*self.here(place), *details))
