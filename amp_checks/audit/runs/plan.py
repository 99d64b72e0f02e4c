"""The runs of an audit: the program as it is, watched; in float32 and float64; and once with an overflow rehearsed."""

from __future__ import annotations

import dataclasses
import math
import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from amp_checks.audit import measures
from amp_checks.audit.case import AuditCase, Training, describe, stepper
from amp_checks.audit.probes import backward, origins, values
from amp_checks.audit.probes.backward import Culprit
from amp_checks.audit.probes.origins import Origins
from amp_checks.audit.probes.values import Amplified
from amp_checks.audit.runs import dtype
from amp_checks.audit.runs.perturbation import SHAKES, Shake
from amp_checks.audit.runs.resume import Resumed, resume
from amp_checks.audit.runs.start import check_alike, start_of
from amp_checks.audit.runs.undo import Mend
from amp_checks.audit.watching import patches
from amp_checks.audit.watching.trace import Kind, Trace
from amp_checks.audit.watching.watch import Watch
from amp_checks.core import NotEmulated, UsageError
from amp_checks.torch_api import state
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import seeded
from amp_checks.torch_api.state import one_thread

REHEARSED_AT = 1
"""The iteration in which the rehearsal overflows: the second, after one real step."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that rules judge.

    Attributes:
        backend: under which it ran.
        training: what was built for the main run (trained by it).
        amp: the program as it is.
        fp32: with every region and scaler disabled, and what the program casts to 16 bits by hand in float32.
        fp64: the same in float64; None where the program does not run there, and then ``no_fp64`` says why.
        scaled: as the reference, but with its scalers, at the loss scales of ``amp``; None where it scales no loss.
        culprit: the op that makes gradients depend on the loss scale; None where they do not, or no op shows it.
        rehearsal: as ``amp``, with an overflow in the second iteration; None where no enabled scaler scales a loss.
        origins: where the first non-finite values came from; None where all stayed finite.
        resumed: what came back from a checkpoint; None where the case has no ``save``.
        amplified: where a rounding error grew out of proportion; None where errors are as they should be.
        angles: where angles were rounded that a sine or cosine is taken of; None where they are as they should be.
        shaken: as the reference, with parameters moved by rounding errors; empty where errors are as they should be.
    """

    backend: Backend
    training: Training
    amp: Trace
    fp32: Trace
    fp64: Trace | None
    no_fp64: str
    rehearsal: Trace | None
    origins: Origins | None
    resumed: Resumed | None
    scaled: Trace | None = None
    culprit: Culprit | None = None
    amplified: Amplified | None = None
    angles: Amplified | None = None
    shaken: tuple[Trace, ...] = ()

    @property
    def amp_is_finite(self) -> bool:
        """Whether the weights of the program as it is stayed finite."""
        return all(facts.finite for facts in self.amp.parameters.values())


def gather(case: AuditCase, backend: Backend) -> Evidence:
    """Run everything that rules need.

    Raises:
        UsageError: the case cannot be built, raises without AMP as well, never calls backward, or does not build the
            same at each call.
    """
    with one_thread(), warnings.catch_warnings(), backend.activate():
        warnings.simplefilter("ignore")
        watch = Watch(follow=True)
        training = run(case, backend, watch)
        amp = watch.trace
        if amp.failure is not None and isinstance(amp.failure.error, NotEmulated):
            raise amp.failure.error
        fp32 = _reference(case, backend, amp)
        check_alike(case.id, amp.start, fp32.start)
        fp64, no_fp64 = _in_float64(case, backend, amp)
        rehearsal = None
        if amp.scaled and amp.failure is None:
            rehearsed = Watch(overflow_at=REHEARSED_AT)
            run(case, backend, rehearsed)
            rehearsal = rehearsed.trace
        evidence = Evidence(
            backend=backend,
            training=training,
            amp=amp,
            fp32=fp32,
            fp64=fp64,
            no_fp64=no_fp64,
            rehearsal=rehearsal,
            origins=_origins(case, backend, amp),
            resumed=_resumed(case, backend, training, watch),
        )
        evidence = _looked_into(case, backend, _scaled(case, backend, evidence))
        return dataclasses.replace(evidence, angles=_angles(case, backend, evidence))


def mended(case: AuditCase, backend: Backend, evidence: Evidence, mend: Mend) -> Evidence | None:
    """The evidence as it would be if one fault were undone; None where that run raises.

    Of parameters whose gradients the fault changed, what backward gave is compared: clipping, for one, comes after it.
    An infinite boost stands for the largest power of two that leaves a bit of headroom in backward.
    """
    if math.isinf(mend.boost):
        mend = dataclasses.replace(mend, boost=measures.headroom(evidence.amp) / 2)
    with one_thread(), warnings.catch_warnings(), backend.activate():
        warnings.simplefilter("ignore")
        watch = Watch(mend=mend)
        run(case, backend, watch)
        amp, fp32, fp64 = watch.trace, evidence.fp32, evidence.fp64
        if amp.failure is not None:
            return None
        if amp.first_real != evidence.amp.first_real:  # other steps are skipped now
            fp32 = _reference(case, backend, amp)
            fp64, _ = _in_float64(case, backend, amp)
        found = dataclasses.replace(
            evidence,
            amp=amp,
            fp32=_given_for(amp.misused, fp32),
            fp64=None if fp64 is None else _given_for(amp.misused, fp64),
            origins=None,
            amplified=None,
        )
        return _looked_into(case, backend, found, mend)


def _looked_into(case: AuditCase, backend: Backend, evidence: Evidence, mend: Mend | None = None) -> Evidence:
    """The evidence, with what large errors of loss and gradients come from where there are any."""
    if measures.are_small(evidence):
        return evidence
    if not evidence.shaken:
        evidence = dataclasses.replace(evidence, shaken=tuple(_shaken(case, backend, evidence)))
    if measures.are_small(evidence) and not measures.too_coarse(evidence):
        return evidence
    return dataclasses.replace(evidence, amplified=_amplified(case, backend, mend))


def _shaken(case: AuditCase, backend: Backend, evidence: Evidence) -> Iterator[Trace]:
    low = measures.low_dtype(evidence.amp)
    if low is None:
        return
    for number in range(SHAKES):
        watch = Watch(ops=False, skip=evidence.amp.first_real)
        shake = Shake(dtype=low, number=number)
        run(case, backend, watch, neutral=True, wide=_widest(evidence), shake=shake)
        if watch.trace.failure is None:
            yield watch.trace


def _widest(evidence: Evidence) -> torch.dtype:
    return torch.float64 if evidence.fp64 is not None else torch.float32


def _given_for(names: set[str], trace: Trace) -> Trace:
    given = {name: trace.given[name] for name in names & set(trace.given)}
    return dataclasses.replace(trace, gradients=trace.gradients | given)


def _reference(case: AuditCase, backend: Backend, amp: Trace) -> Trace:
    # A program may hold on to a dtype that is only spoken of, in a view of bits for one: then its casts stay.
    for wide in (torch.float32, None):
        watch = Watch(ops=False, skip=amp.first_real, follow=True)
        run(case, backend, watch, neutral=True, wide=wide)
        failure = watch.trace.failure
        if failure is None:
            break
    # Without autocast, weights kept in 16 bits do not meet float32 inputs: a fault of its own, which a rule names.
    kept_low = any(facts.dtype.itemsize == 2 for facts in amp.parameters.values())
    if failure is not None and amp.failure is not None and not kept_low:
        raise UsageError(
            f"the case {case.id} raises in float32 too, with autocast and scaler disabled: {describe(failure.error)}"
        )
    differentiated = any(next(trace.of(Kind.BACKWARD), None) is not None for trace in (watch.trace, amp))
    if not differentiated and failure is None and amp.failure is None:
        raise UsageError(
            f"the case {case.id} has no loss: in {watch.trace.steps} iterations it called neither backward() nor "
            "torch.autograd.grad for parameters of the model (without create_graph); see that step or run trains it"
        )
    return watch.trace


def _in_float64(case: AuditCase, backend: Backend, amp: Trace) -> tuple[Trace | None, str]:
    if amp.failure is not None:
        return None, "the program raised before it could be compared"
    watch = Watch(ops=False, skip=amp.first_real, follow=True)
    try:
        run(case, backend, watch, neutral=True, wide=torch.float64)
    except UsageError as error:
        return None, str(error)
    failure = watch.trace.failure
    if failure is not None:
        return None, f"in float64 the program raises {describe(failure.error)}"
    return watch.trace, ""


def _scaled(case: AuditCase, backend: Backend, evidence: Evidence) -> Evidence:
    """The evidence, with the run that shows whether gradients depend on the loss scale."""
    amp = evidence.amp
    if not amp.scaled or amp.failure is not None:
        return evidence
    how: dict[str, Any] = {"neutral": True, "wide": _widest(evidence)}
    watch = Watch(ops=False, skip=amp.first_real, scales=amp.scales, follow=True)
    run(case, backend, watch, scaled=True, **how)
    evidence = dataclasses.replace(evidence, scaled=watch.trace)
    if measures.worst_dependence(evidence) is None:
        return evidence
    plain, scaled = _made_in_backward(case, backend, **how), _made_in_backward(case, backend, **how, scaled=True)
    scale = next(watch.trace.of(Kind.SCALE)).data["scale"]
    return dataclasses.replace(evidence, culprit=backward.find(plain, scaled, scale))


def _made_in_backward(case: AuditCase, backend: Backend, **how: Any) -> list[backward.Made]:
    watch = Watch(ops=False)
    mode = backward.BackwardMode(watch)
    run(case, backend, watch, extra=mode, **how)
    return mode.made


def _origins(case: AuditCase, backend: Backend, amp: Trace) -> Origins | None:
    step = origins.first_trouble(amp)
    if step is None:
        return None
    # Without a scaler a bad gradient goes into the weights, and shows in the loss one iteration later.
    for at in (step - 1, step) if step > 0 and not amp.scaled else (step,):
        watch = Watch(ops=False)
        mode = origins.OriginMode(watch, at)
        run(case, backend, watch, extra=mode)
        found = mode.result()
        if at == step or found.first() is not None:
            return found
    return None


def _resumed(case: AuditCase, backend: Backend, training: Training, watch: Watch) -> Resumed | None:
    before = state.capture()
    with _all_seeded(_without_folder(case.id)), ExitStack() as stack:
        stack.callback(state.restore, before)
        return resume(case, backend, training, watch)


def _amplified(case: AuditCase, backend: Backend, mend: Mend | None = None) -> Amplified | None:
    return values.find(_values(case, backend, mend), _values(case, backend, mend, neutral=True, wide=torch.float32))


def _angles(case: AuditCase, backend: Backend, evidence: Evidence) -> Amplified | None:
    """Loss and gradients of an untrained model seldom tell that its phases are lost: the phases are looked at."""
    trace = evidence.amp
    low = measures.low_dtype(trace)
    if not trace.takes_angles or low is None or trace.failure is not None or measures.draws_in_16_bits(trace):
        return None
    exact = _values(case, backend, neutral=True, wide=_widest(evidence))
    return values.wrong_angles(_values(case, backend), exact, low)


def _values(case: AuditCase, backend: Backend, mend: Mend | None = None, **how: Any) -> list[values.Value]:
    watch = Watch(ops=False, mend=mend)
    mode = values.ValueMode(watch)
    run(case, backend, watch, extra=mode, **how)
    return mode.values


def run(
    case: AuditCase,
    backend: Backend,
    watch: Watch,
    *,
    neutral: bool = False,
    scaled: bool = False,
    wide: torch.dtype | None = None,
    extra: Any = None,
    shake: Shake | None = None,
) -> Training:
    """Build and run the case once, watched; what was built is widened and shaken first.

    ``neutral`` disables regions and, unless ``scaled``, scalers.

    What the step raises becomes `Trace.failure`; what building raises is a `UsageError`.
    """
    before = state.capture()
    with _all_seeded(_without_folder(case.id)), ExitStack() as stack:
        # A program that leaves autocast on must not leave it on for the next run.
        stack.callback(state.restore, before)
        if neutral:
            stack.enter_context(patches.neutral(scalers=not scaled))
        stack.enter_context(patches.watched(watch))
        training = case.training(backend)
        if wide is not torch.float64:
            watch.trace.start = start_of(training)
        if wide is not None:
            training = dtype.widen(training, wide)
        if shake is not None:
            shake(training)
        watch.know(training, whole_loop=training.run is not None)
        iterate = stepper(training, backend)
        with watch.watching(), extra if extra is not None else nullcontext(), _running_in(wide):
            try:
                for _ in iterate():
                    watch.end_step()
            except (UsageError, KeyboardInterrupt):
                raise
            except SystemExit as error:
                if watch.rehearsal.at is None:
                    raise UsageError(f"the case {case.id} called sys.exit in its step ({describe(error)})") from error
                watch.fail(error)
            except Exception as error:  # noqa: BLE001 - whatever the user's step raises is what is audited
                watch.fail(error)
        watch.close()
    return training


def _running_in(wide: torch.dtype | None) -> Any:
    return dtype.running_in(wide) if wide is not None else nullcontext()


def _without_folder(case: str) -> str:
    """A case draws the same numbers on every machine, wherever its file lies and however its path was written."""
    return case.replace("\\", "/").rpartition("/")[2]


@contextmanager
def _all_seeded(name: str) -> Iterator[None]:
    """Torch's, Python's and numpy's random numbers start from the case's name, and come back."""
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one is what users draw from
    with seeded(name):
        random.seed(name)
        np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(numpys)  # noqa: NPY002
