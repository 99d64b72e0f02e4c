"""Watches a training run from outside, and turns what happens into a `Trace`; it judges nothing.

Methods of torch are replaced on their classes while a run lasts, so whoever imported a class by name is seen too; ops
are seen by a dispatch mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from amp_checks.audit.case import Training, describe
from amp_checks.audit.places import line, raised_at, tracked_modules
from amp_checks.audit.watching import readable
from amp_checks.audit.watching.engine import BackwardWatch
from amp_checks.audit.watching.ops import OpMode, OpWatch
from amp_checks.audit.watching.optimizers import OptimizerWatch
from amp_checks.audit.watching.regions import RegionWatch
from amp_checks.audit.watching.scalers import ScalerWatch
from amp_checks.audit.watching.state import RunState
from amp_checks.audit.watching.trace import Failure, ParameterFacts
from amp_checks.core import DEVICE_TYPES
from amp_checks.torch_api.dtypes import LOW
from amp_checks.torch_api.patching import Patches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What a run repeats of another, so that the two can be compared.

    Attributes:
        skips: numbers of optimizers, and how many of their first steps are undone, as a scaler skipped them there.
        scales: the loss scale there after each update.
    """

    skips: tuple[tuple[int, int], ...] = ()
    scales: tuple[float, ...] = ()


FREE = Alignment()
"""It repeats nothing."""


class Watch:
    """One run, watched.

    Args:
        ops: watch each op too. Without it only losses, gradients, steps and scales are noted: what a reference needs.
        raw: note also what backward gave of each gradient, whatever becomes of it until its step.
        alignment: what it repeats of another run.
    """

    def __init__(self, *, ops: bool = True, raw: bool = False, alignment: Alignment = FREE) -> None:
        self.state = state = RunState()
        self.trace = state.trace
        state.book.keeps_raw = raw
        self.ops = OpWatch(state, enabled=ops)
        self.optimizers = OptimizerWatch(state, self.ops.uses, dict(alignment.skips))
        self.backward = BackwardWatch(state, self.ops, self.optimizers)
        self._parts = (
            ScalerWatch(state, self.ops, self.optimizers, alignment.scales),
            RegionWatch(state, self.ops.uses),
            self.backward,
            self.optimizers,
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See what scalers, regions, engine, optimizers and schedulers do inside."""
        with Patches() as patches:
            for part in self._parts:
                part.install(patches)
            yield

    def know(self, training: Training) -> None:
        """What is trained; called when it is built."""
        state, named = self.state, training.named_parameters()
        state.training = training
        if training.run is not None:
            state.advance = self.end_step
        own = {id(parameter) for parameter in named.values()}
        for key in own & state.book.gradients.keys():
            del state.book.gradients[key]
        state.book.know(named)
        lone = training.modules().get("")
        self.trace.root = type(lone).__name__ if lone is not None else ""
        for name, parameter in named.items():
            self.trace.parameters[name] = ParameterFacts(dtype=parameter.dtype)
        state.step = 0
        self._refresh()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch ops inside."""
        with ExitStack() as stack:
            stack.enter_context(tracked_modules(self.state.training.named_modules(), self.state.modules))
            if self.ops.enabled:
                stack.enter_context(OpMode(self.ops))
            yield

    def end_step(self) -> None:
        """An iteration ended."""
        state = self.state
        with state.quietly():
            self.ops.end_step()
            state.step += 1
            self.trace.steps = state.step
            state.just_skipped = False
            self._refresh()
            self.ops.start_step()

    def _refresh(self) -> None:
        """Addresses change when weights are replaced or moved."""
        known, buffers = self.ops.uses.parameters, self.ops.uses.buffers
        known.clear()
        buffers.clear()
        for name, buffer in self.state.training.named_buffers().items() if self.ops.enabled else ():
            if buffer.dtype in LOW and readable.values(buffer) is not None and buffer.layout is torch.strided:
                buffers[buffer.untyped_storage().data_ptr()] = name
        for gradient in self.state.book.gradients.values() if self.ops.enabled else ():
            if gradient.parameter.layout is torch.strided and gradient.parameter.numel():
                known.setdefault(gradient.parameter.data_ptr(), gradient.name)

    def close(self, *, stopped: bool = False) -> None:
        """The run is over, or was stopped where it was: read what was left for the end."""
        trace = self.trace
        if not (stopped and self._is_inside_regions()):
            trace.left_on = tuple(name for name in DEVICE_TYPES if torch.is_autocast_enabled(name))
        with self.state.quietly():
            self.ops.end_step()
            trace.losses = [(step, value.double().item() / scale) for step, value, scale in self.backward.losses]
            for op in trace.ops:
                op.where, op.frame = line(op.frame), None
            trace.optimizers = [type(optimizer).__name__ for optimizer in self.optimizers.known]
            trace.read_state(self.state.training, self.optimizers.known)
            for gradient in self.state.book.gradients.values():
                if (facts := trace.parameters.get(gradient.name)) is not None:
                    now = gradient.parameter.grad
                    facts.received = gradient.received
                    facts.pending = readable.is_finite(now) if now is not None else None

    def _is_inside_regions(self) -> bool:
        """Whether regions are entered, none of them once more in each iteration."""
        places = [region.where for region in self.state.regions]
        return bool(places) and len(set(places)) == len(places)

    def fail(self, error: BaseException) -> None:
        """The step raised."""
        where, found = raised_at(error), self.ops.failure
        if found is None or found.error is not error:
            found = Failure(error=error, text="", step=self.state.step, op=None, inputs=(), where=where, module=None)
        self.trace.failure = dataclasses.replace(
            found, text=describe(error), step=self.state.step, where=found.where or where
        )
