"""The runs of an audit as data: each is the program with named changes, aligned with another run, and recorded.

`Runs` makes each that is asked for, once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from amp_checks.audit.case import AuditCase, Ended
from amp_checks.audit.probes.recorder import Recorder, Result
from amp_checks.audit.runs.change import Change
from amp_checks.audit.runs.disabled import AutocastOff, ScalerOff
from amp_checks.audit.runs.dtype import Compute
from amp_checks.audit.runs.overflow import InjectedOverflow
from amp_checks.audit.runs.resume import Resumed, resume
from amp_checks.audit.runs.session import Ran, Session
from amp_checks.audit.runs.settle import LEAST_SCALE, Settled, StartScale, all_skipped, one_waits
from amp_checks.audit.runs.undo import Undo
from amp_checks.audit.watching.trace import Trace
from amp_checks.audit.watching.watch import FREE, Alignment
from amp_checks.core import NotEmulated, SuiteError
from amp_checks.torch_api import memory, state
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import seeded
from amp_checks.torch_api.state import one_thread


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A run of the program.

    Attributes:
        changes: what it does otherwise than the program, in the order in which that is made.
        follows: the run whose skipped steps it repeats, and whose loss scales where its scalers are on; or None.
        alignment: what it repeats, once that run is known.
        ops, raw: as of `Watch`.
        recorder: what is recorded besides, of the iteration ``recorded_step``; or None.
    """

    changes: tuple[Change, ...] = ()
    follows: Setup | None = None
    alignment: Alignment = FREE
    ops: bool = False
    raw: bool = False
    recorder: type[Recorder[Any]] | None = None
    recorded_step: int = 0

    @property
    def words(self) -> str:
        """What it is for, for whoever waits for it."""
        parts = [_words(change) for change in self.changes] or ["as it is"]
        return ", ".join(parts) + (", to find an origin" if self.recorder is not None else "")

    def but(self, *changes: Change, **fields: Any) -> Setup:
        """The same, with further changes and other fields."""
        return dataclasses.replace(self, changes=(*self.changes, *changes), **fields)

    def without(self, undo: Undo | None) -> Setup:
        """The same, with a fault undone in what autocasts: in this run, or in the one that it follows."""
        if undo is None or AutocastOff() not in self.changes:
            return self if undo is None else self.but(undo)
        return dataclasses.replace(self, follows=self.follows.without(undo) if self.follows is not None else None)


def _words(change: Change) -> str:
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(change) if dataclasses.is_dataclass(change) else ()
    return change.words.format(**{field.name: getattr(change, field.name) for field in fields}).replace("torch.", "")


AMP = Setup(ops=True, raw=True)
"""The program as it is, watched."""
OVERFLOW = Setup(changes=(InjectedOverflow(),), ops=True)
"""With gradients that overflow in one step, which a scaler skips."""
NEUTRAL = Setup(changes=(AutocastOff(), ScalerOff()), follows=AMP, raw=True)
"""With every region and scaler disabled; what the program casts to 16 bits explicitly stays."""
FP32, FP64 = (NEUTRAL.but(Compute(dtype)) for dtype in (torch.float32, torch.float64))


def scaled_in(dtype: torch.dtype) -> Setup:
    """As the reference in that dtype, but with its scalers: what the loss scale alone does."""
    return Setup(changes=(AutocastOff(), Compute(dtype)), follows=AMP, raw=True)


class Runs:
    """The runs of a case under a backend.

    Attributes:
        settled: from which loss scale on it is run, where all of its steps were skipped; None where it is run as it is.
    """

    def __init__(self, case: AuditCase, backend: Backend) -> None:
        self.case = case
        self.backend = backend
        self._finished: dict[Setup, Ran] = {}
        self._trained: Session | None = None
        self._is_active = False
        self._always: tuple[Change, ...] = ()
        self.settled: Settled | None = None

    def settle(self) -> None:
        """Start at a lower loss scale where the case has too few batches for its own to come down, in all runs."""
        own = scale = self.trace(AMP).first_scale or 1.0
        while all_skipped(trace := self.trace(AMP)):
            scale, before = min(scale, trace.scales[-1]), scale
            never = scale < LEAST_SCALE or scale == before  # or the program sets the scale by itself
            self.settled = Settled(own=own, start=trace.first_scale or 1.0, never=never)
            if never:
                return
            self._always = (StartScale(scale),)
            self._finished.clear()
            self.settled = Settled(own=own, start=scale, never=False)
        if self.settled is None:
            self._settle_for_all(own)

    def _settle_for_all(self, own: float) -> None:
        """The same for one of several optimizers; where it steps at no loss scale, the program is run as it is."""
        as_it_is = dict(self._finished)
        while one_waits(trace := self.trace(AMP)):
            scale = trace.scales[-1]
            if scale < LEAST_SCALE:
                self._always, self._finished, self.settled = (), as_it_is, None
                return
            self._always = (StartScale(scale),)
            self._finished = {}
            self.settled = Settled(own=own, start=scale, never=False)

    def trace(self, setup: Setup) -> Trace:
        """What was seen of that run.

        Raises:
            UsageError: building the program raises, or it exits.
        """
        return self._run(setup).trace

    def ahead(self, setups: Sequence[Setup]) -> None:
        """Make these runs now, two at a time, where each has a process of its own and the machine has room for two.

        What one of them raises is left for who asks for it: it is run again then.
        """
        # A run in float64 takes twice the memory of the one that has ended.
        room = memory.cores() >= 2 and memory.available() > 5 * memory.peak_of_children()
        if not self.case.isolated or not room:
            return
        started: list[tuple[Setup, Callable[[], Ran]]] = []
        for setup in (*map(self._aligned, setups), None, None):
            if setup is not None and setup not in self._finished:
                started.append((setup, self._start(setup)))
            if started and (setup is None or len(started) == 2):
                done, result = started.pop(0)
                with contextlib.suppress(SuiteError, NotEmulated):
                    self._finished[done] = result()

    def recorded(self, setup: Setup, kind: type[Recorder[Result]], step: int = 0) -> Result:
        """What a recorder of that kind makes of that iteration of the run."""
        setup = dataclasses.replace(setup, ops=False, raw=False, recorder=kind, recorded_step=step)
        result: Result = self._run(setup).recorded
        return result

    @property
    def has_run(self) -> bool:
        """Whether the program has run as it is."""
        return AMP in self._finished

    def resumed(self) -> Resumed | None:
        """What came back from a checkpoint of the program as it is; None where the case saves none."""
        self.trace(AMP)
        if self._trained is None or self._trained.training is None:
            return None
        with self._prepared():
            return resume(self.case, self.backend, self._trained.training, self._trained.watch.state.scalers)

    def _run(self, setup: Setup) -> Ran:
        setup = self._aligned(setup)
        if setup not in self._finished:
            self._finished[setup] = self._start(setup)()
        return self._finished[setup]

    def _aligned(self, setup: Setup) -> Setup:
        """The same, with what it repeats of the run that it follows."""
        if setup.follows is None:
            return setup
        followed = self.trace(setup.follows)
        scales = () if ScalerOff() in setup.changes else tuple(followed.scales)
        alignment = Alignment(skips=tuple(sorted(followed.first_real.items())), scales=scales)
        return dataclasses.replace(setup, follows=None, alignment=alignment)

    @contextmanager
    def together(self) -> Iterator[None]:
        """All runs that are made inside have one activation of the backend; those in processes each have their own."""
        with one_thread() if self.case.isolated else self.active():
            yield

    @contextmanager
    def active(self) -> Iterator[None]:
        """The backend, activated once for all runs that are made inside."""
        if self._is_active:
            yield
            return
        with one_thread(), warnings.catch_warnings(), self.backend.activate():
            warnings.simplefilter("ignore")
            self._is_active = True
            try:
                yield
            finally:
                self._is_active = False

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        before = state.capture()
        name = self.case.id.replace("\\", "/").rpartition("/")[2]
        with self.active(), _all_seeded(name), ExitStack() as stack:
            # A program that leaves autocast on must not leave it on for the next run.
            stack.callback(state.restore, before)
            yield

    def _start(self, setup: Setup) -> Callable[[], Ran]:
        """Build and run the program; what its step raises becomes `Trace.failure`."""
        iterations = None if setup == AMP else self._iterations()

        def perform(ended: Ended) -> Ran:
            session = Session(setup, self._always, iterations)
            with self._prepared(), session.installed():
                self.case.play(self.backend, session, ended)
                result = session.finish()
                if setup == AMP and session.training is not None and session.training.save is not None:
                    self._trained = session
            if session.is_large:
                del session
                memory.give_back()
            return result

        return self.case.start(self.backend, setup.words, perform)

    def _iterations(self) -> int | None:
        amp = self._finished.get(AMP)
        return amp.trace.steps if amp is not None else None


@contextmanager
def _all_seeded(name: str) -> Iterator[None]:
    """Torch's, Python's and numpy's random numbers start from the case's name, and come back.

    That name has no folder: a case draws the same numbers wherever its file lies.
    """
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one is what users draw from
    with seeded(name):
        random.seed(name)
        np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(numpys)  # noqa: NPY002
