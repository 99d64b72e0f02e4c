"""One run of a program: watched, with its changes, from where training begins to where it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from amp_checks.audit.case import Training
from amp_checks.audit.runs.dtype import Compute
from amp_checks.audit.runs.start import start_of
from amp_checks.audit.watching.trace import Trace
from amp_checks.audit.watching.watch import Watch
from amp_checks.emulation.answers import answered

if TYPE_CHECKING:
    from amp_checks.audit.runs.change import Change
    from amp_checks.audit.runs.plan import Setup


_LARGE = 2**20
"""Numbers, of all parameters."""


@dataclasses.dataclass(slots=True)
class Ran:
    """What is known of a run that ended: what was seen, and what its recorder made of one iteration."""

    trace: Trace
    recorded: Any = None


class Session:
    """One run.

    Args:
        setup: which.
        always: changes that every run of the program has.
        iterations: how many it is to have, for a program that goes on until it is stopped; None where that is for the
            program to say.

    Attributes:
        training: what is trained, once training has begun; None before.
    """

    def __init__(self, setup: Setup, always: tuple[Change, ...] = (), iterations: int | None = None) -> None:
        self.iterations = iterations
        self.watch = Watch(ops=setup.ops, raw=setup.raw, alignment=setup.alignment)
        self.training: Training | None = None
        self._setup = setup
        self._always = always
        self._loop = ExitStack()
        kind = setup.recorder
        self._recorder = kind(self.watch.state, setup.recorded_step) if kind is not None else None

    @property
    def may_exit(self) -> bool:
        """Whether the program may end by itself for what was changed."""
        return any(change.may_exit for change in self._setup.changes)

    @property
    def is_large(self) -> bool:
        """Whether its models take so much memory that it shall not wait to be used again."""
        named = self.training.named_parameters() if self.training is not None else {}
        return sum(parameter.numel() for parameter in named.values()) > _LARGE

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the program may be built, and begin to train."""
        with ExitStack() as stack:
            answered.clear()
            for change in (*self._always, *self._setup.changes):
                stack.enter_context(change.around(self.watch))
            stack.enter_context(self.watch.installed())
            stack.enter_context(self._loop)
            yield

    def begin(self, training: Training) -> Training:
        """Training begins: what was built, as the run's changes make it."""
        setup, watch = self._setup, self.watch
        if setup.raw and Compute(torch.float64) not in setup.changes:
            watch.trace.start = start_of(training)
        for change in setup.changes:
            training = change.prepared(training)
        self.training = training
        watch.know(training)
        self._loop.enter_context(watch.watching())
        self._loop.enter_context(self._recorder or nullcontext())
        for change in setup.changes:
            self._loop.enter_context(change.around_loop(watch))
        return training

    def finish(self, *, stopped: bool = False) -> Ran:
        """Training has ended, or was stopped in the middle of the program."""
        self._loop.close()
        self.watch.close(stopped=stopped)
        if answered:
            self.watch.trace.notes["answered for the device"] = "; ".join(sorted(answered))
        return Ran(self.watch.trace, self._recorder.result() if self._recorder is not None else None)
