"""What rules judge: the runs of an audit and what is made of them, each made when a rule first asks for it."""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import cached_property
from typing import Any

import torch

from amp_checks.audit import measures
from amp_checks.audit.measures import Compared
from amp_checks.audit.probes import backward, sources, values
from amp_checks.audit.probes.backward import BackwardRecorder, SourceOp
from amp_checks.audit.probes.recorder import Recorder, Result
from amp_checks.audit.probes.sources import SourceRecorder, Sources
from amp_checks.audit.probes.values import Amplified, ValueRecorder
from amp_checks.audit.runs.perturbation import PERTURBED_RUNS, Perturbation
from amp_checks.audit.runs.plan import AMP, FP32, FP64, NEUTRAL, OVERFLOW, Runs, Setup, scaled_in
from amp_checks.audit.runs.resume import Resumed
from amp_checks.audit.runs.start import check_alike
from amp_checks.audit.runs.undo import Undo
from amp_checks.audit.watching.events import Backward, RegionEntered
from amp_checks.audit.watching.trace import Trace
from amp_checks.core import NotEmulated, UsageError
from amp_checks.torch_api.dtypes import dtype_name


class Evidence:
    """All that rules judge, of a program; or of one in which a fault is undone.

    Attributes:
        quick: whether nothing is run but the program as it is and in float32.
    """

    def __init__(self, runs: Runs, undo: Undo | None = None) -> None:
        self.runs = runs
        self._undo = undo
        self._without: dict[Undo, Evidence | None] = {}
        self.quick = False

    def but(self, **known: Any) -> Evidence:
        """The same evidence with some of it known otherwise."""
        other = copy.copy(self)
        vars(other).update(known)
        return other

    def from_two_runs(self) -> Evidence:
        """What the program as it is and in float32 show; for no rule is anything run besides."""
        compared = Compared(amp=self.amp, fp32=self.fp32, exact=self.fp32)
        if not measures.are_small(compared):  # the program's own conditioning would have to be known
            compared = dataclasses.replace(compared, amp=self.fp32)
        two = self.but(
            _in_float64=(None, "left out: a quick audit"),
            fp64=None,
            scaled=None,
            overflow=None,
            sources=None,
            resumed=None,
            amplified=None,
            angles=None,
            compared=compared,
        )
        two.quick = True
        return two

    def without(self, undo: Undo) -> Evidence | None:
        """The evidence as it would be if one fault were undone; None where that run raises.

        Of parameters whose gradients the fault changed, what backward gave is compared: clipping, for one, comes after
        it. Where values that are not finite came from is not looked for.
        """
        if self.quick:
            return None
        if undo not in self._without:
            boost = measures.headroom(self.amp) / 2 if math.isinf(undo.boost) else undo.boost
            undone = Evidence(self.runs, dataclasses.replace(undo, boost=boost)).but(sources=None)
            self._without[undo] = undone if undone.amp.failure is None else None
        return self._without[undo]

    def _trace(self, setup: Setup) -> Trace:
        return self.runs.trace(setup.without(self._undo))

    def _recorded(self, setup: Setup, kind: type[Recorder[Result]], step: int = 0) -> Result:
        return self.runs.recorded(setup.without(self._undo), kind, step)

    @cached_property
    def amp(self) -> Trace:
        """The program as it is.

        Raises:
            NotEmulated: it needs what the backend lacks.
        """
        trace = self._trace(AMP)
        if trace.failure is not None and isinstance(trace.failure.error, NotEmulated):
            raise trace.failure.error
        return trace

    @cached_property
    def fp32(self) -> Trace:
        """With every region and scaler disabled, and what the program casts to 16 bits explicitly in float32."""
        trace = self._trace(FP32)
        # A program may hold on to a dtype that is only spoken of, in a view of bits for one: then its casts stay.
        return self._reference(trace if trace.failure is None else self._trace(NEUTRAL))

    def prepare(self) -> None:
        """Make the runs that a healthy program needs, side by side where that can be."""
        if self.amp.failure is None:
            scaled = (scaled_in(torch.float64), OVERFLOW) if self.amp.scaled else ()
            self.runs.ahead((FP32, FP64, *scaled))

    def check(self) -> None:
        """Refuse what cannot be compared.

        Raises:
            UsageError: the case raises without AMP as well, never calls backward, or does not build the same at each
                call.
        """
        amp, fp32, case = self.amp, self.fp32, self.runs.case.id
        # Without autocast, weights kept in 16 bits do not meet float32 inputs: a fault that another rule names.
        kept_low = any(facts.dtype.itemsize == 2 for facts in amp.parameters.values())
        if fp32.failure is not None and amp.failure is not None and not kept_low:
            error = fp32.failure.text
            raise UsageError(f"the case {case} raises in float32 too, with autocast and scaler disabled: {error}")
        traces = (amp, fp32)
        if all(trace.failure is None and trace.first(Backward) is None for trace in traces):
            raise UsageError(
                f"the case {case} has no loss: in {fp32.steps} iterations it called neither backward() nor "
                "torch.autograd.grad for parameters of the model (without create_graph); see that step or run trains it"
            )
        check_alike(case, amp.start, fp32.start)
        self._check_device()

    def _check_device(self) -> None:
        """A program that trains on the CPU, of its own choice, is not judged under the heading of another device."""
        backend, entered = self.runs.backend, self.amp.of(RegionEntered)
        on_cpu = [event for event in entered if event.device == "cpu"]
        if backend.emulated and backend.device_type != "cpu" and on_cpu and len(on_cpu) == len(entered):
            raise UsageError(
                f"{self.runs.case.id} does not train on {backend.device_type}: its autocast regions are for the CPU "
                f"({on_cpu[0].where}); audit it as it ran, with --backend cpu-{dtype_name(on_cpu[0].dtype)}"
            )

    @cached_property
    def fp64(self) -> Trace | None:
        """The same in float64; None where the program does not run there, and then ``no_fp64`` says why."""
        return self._in_float64[0]

    @property
    def no_fp64(self) -> str:
        """Why there is no float64 run."""
        return self._in_float64[1]

    @cached_property
    def _in_float64(self) -> tuple[Trace | None, str]:
        if self.amp.failure is not None:
            return None, "the program raised before it could be compared"
        try:
            trace = self._trace(FP64)
        except UsageError as error:
            return None, str(error)
        if trace.failure is not None:
            return None, f"in float64 the program raises {trace.failure.text}"
        return self._reference(trace), ""

    def _reference(self, trace: Trace) -> Trace:
        """The reference; where a fault is undone, with what backward gave of the parameters that it is undone for."""
        if self._undo is None:
            return trace
        raw = {name: value for name, value in trace.raw_gradients.items() if name in self.amp.modified}
        return dataclasses.replace(trace, gradients=trace.gradients | raw)

    @property
    def _widest(self) -> torch.dtype:
        return torch.float64 if self.fp64 is not None else torch.float32

    @property
    def _neutral(self) -> Setup:
        return FP64 if self.fp64 is not None else FP32

    @cached_property
    def compared(self) -> Compared:
        """Loss and gradients against the references, perturbed ones too where errors are larger than they should be."""
        found = Compared(amp=self.amp, fp32=self.fp32, exact=self.fp64 or self.fp32)
        low = measures.low_dtype(self.amp)
        if low is None or measures.are_small(found):
            return found
        for seed in range(PERTURBED_RUNS):
            trace = self._trace(self._neutral.but(Perturbation(dtype=low, seed=seed), raw=False))
            if trace.failure is None:
                found = dataclasses.replace(found, perturbed=(*found.perturbed, trace))
            # Two runs give more than 2.15 times the true root mean square once in a hundred, three less than an eighth
            # of it 2.7 times in a thousand: further ones would not accuse, or not acquit.
            explained = len(found.perturbed) >= 2 and measures.are_small(found, of_limit=0.5)
            hopeless = len(found.perturbed) >= 3 and not measures.are_small(found, of_limit=8.0)
            if explained or hopeless:
                break
        return found

    @cached_property
    def scaled(self) -> Trace | None:
        """As the reference, with its scalers, at the loss scales of ``amp``; None where it scales no loss."""
        if not self.amp.scaled or self.amp.failure is not None:
            return None
        return self._trace(scaled_in(self._widest))

    @cached_property
    def dependence(self) -> tuple[str, float] | None:
        """The parameter whose gradient depends most on the loss scale, and how much; None where none does."""
        return measures.worst_dependence(self.compared, self.scaled)

    @cached_property
    def source_op(self) -> SourceOp | None:
        """The op that makes gradients depend on the loss scale; None where they do not, or no op shows it."""
        if self.dependence is None or self.scaled is None:
            return None
        setups = (self._neutral, scaled_in(self._widest))
        plain, scaled = (self._recorded(setup, BackwardRecorder) for setup in setups)
        return backward.find(plain, scaled, self.scaled.first_scale or 1.0)

    @cached_property
    def overflow(self) -> Trace | None:
        """As ``amp``, with an overflow in the second iteration; None where no enabled scaler scales a loss."""
        return self._trace(OVERFLOW) if self.amp.scaled and self.amp.failure is None else None

    @cached_property
    def sources(self) -> Sources | None:
        """Where the first non-finite values came from; None where all stayed finite."""
        step = sources.first_trouble(self.amp, self.fp32)
        if step is None:
            return None
        # Without a scaler a bad gradient goes into the weights, and shows in the loss one iteration later.
        if step > 0 and not self.amp.scaled:
            before = self._recorded(AMP, SourceRecorder, step - 1)
            if before.first() is not None:
                return before
        return self._recorded(AMP, SourceRecorder, step)

    @cached_property
    def resumed(self) -> Resumed | None:
        """What came back from a checkpoint; None where the case has no ``save``."""
        return self.runs.resumed() if self.amp.failure is None else None

    @cached_property
    def amplified(self) -> Amplified | None:
        """Where a rounding error grew out of proportion; None where none did, or errors are as they should be."""
        if measures.are_small(self.compared) and not measures.too_coarse(self.compared):
            return None
        amp, fp32 = (self._recorded(setup, ValueRecorder) for setup in (AMP, FP32))
        return values.find(amp, fp32)

    @cached_property
    def angles(self) -> Amplified | None:
        """Where angles were rounded that a sine or cosine is taken of; None where they are as they should be.

        Loss and gradients of an untrained model seldom show that its phases are lost: the phases are compared.
        """
        low = measures.low_dtype(self.amp)
        judged = self.amp.takes_angles and self.amp.failure is None and not measures.draws_in_16_bits(self.amp)
        if low is None or not judged:
            return None
        amp, exact = (self._recorded(setup, ValueRecorder) for setup in (AMP, self._neutral))
        return values.wrong_angles(amp, exact, low)
