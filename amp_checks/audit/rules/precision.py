"""Loss and gradients against float64, in units of what the dtype allows and of FP32's own error."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.measures import (
    GRADIENT_ERROR,
    LOSS_ERROR,
    UNPLACED_ERROR,
    Compared,
    bias,
    first_losses,
    ill_conditioned,
    loss_ratio,
    low_dtype,
    peaks_of_backward,
    ratios,
    scale_bias,
    too_coarse,
    total_error,
    wrong_size,
)
from amp_checks.audit.probes.values import Amplified
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.watching.events import Backward, IntegersRounded, LossScaled, SumStagnates
from amp_checks.torch_api.dtypes import dtype_name

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

FLUSHED = 0.05
"""Share of a parameter's non-zero gradient elements that may be exactly zero under AMP."""


@rule(
    "gradients-differ",
    ERROR,
    remedy="run the module in float32 (torch.autocast(device_type, enabled=False)) from the op on",
)
def gradients_differ(evidence: Evidence) -> Iterator[Found]:
    """The first gradients that an optimizer used are not those of float64, by more than 16 bits explain."""
    errors = ratios(evidence.compared)
    worst = {name: ratio for name, ratio in errors.items() if not ratio < GRADIENT_ERROR.value}
    if not worst or not _finite(evidence) or (evidence.amplified is None and not _stands_out(evidence.compared)):
        return
    name = max(worst, key=lambda key: worst[key])
    message = f"the first gradients of {len(worst)} parameters are wrong; that of {name} by {worst[name]:.3g} eps"
    yield _placed(message, evidence.amplified, module=name.rpartition(".")[0])


def _placed(message: str, place: Amplified | None, *, module: str | None = None, step: int | None = None) -> Found:
    """A finding at the op whose rounding error grew, or where there is none, in that module."""
    if place is None:
        return Found(message=message, module=module, step=step)
    message += f": {place.describe()}"
    return Found(message=message, module=place.module, where=place.where, op=place.op, step=step)


NO_SINE = 0.25
"""Error of a sine that is no longer a matter of precision."""


@rule(
    "angle-in-16-bits",
    ERROR,
    remedy="compute positions, frequencies and their product in float32, in torch.autocast(device_type, enabled=False)",
)
def angle_in_16_bits(evidence: Evidence) -> Iterator[Found]:
    """From 256 on bfloat16 holds even numbers only, float16 from 2048 on: the sine of such an angle is any number."""
    place = evidence.angles
    if place is None:
        return
    taken = place.by or place.op
    at = f" at {place.by_where}" if place.by is not None else ""
    yield Found(
        message=f"angles are rounded to 16 bits, and {taken}{at} is off by up to {place.error:.2g} for it",
        severity=None if place.error >= NO_SINE else WARNING,
        module=place.module,
        where=place.where,
        op=place.op,
        step=0,
    )


@rule(
    "insufficient-precision",
    WARNING,
    remedy="compare what lies around zero (normalise targets, take offsets out of layers), or run that layer in "
    "float32 (torch.autocast(device_type, enabled=False))",
)
def too_coarse_to_compare(evidence: Evidence) -> Iterator[Found]:
    """A small difference of large values: rounding the weights alone turns the gradients as far."""
    if not _finite(evidence) or not too_coarse(evidence.compared) or evidence.amplified is None:
        return
    message = f"rounding weights to 16 bits makes gradients {total_error(evidence.compared):.0%} wrong"
    yield _placed(message, evidence.amplified, step=0)


@rule("gradients-off-scale", ERROR, remedy="unscale gradients by exactly the factor that the loss was scaled with")
def gradients_off_scale(evidence: Evidence) -> Iterator[Found]:
    """Rounding errors have no direction: gradients that are all off by one factor were scaled wrongly."""
    if not _finite(evidence):
        return
    found = bias(evidence.compared) or 0.0
    if abs(found) >= scale_bias(evidence.compared):
        yield Found(message=f"all gradients {_off_by(1.0 + found)}")
    elif (factor := wrong_size(evidence.compared)) is not None:
        yield Found(message=f"all gradients {_off_by(factor)}, and point elsewhere")


def _off_by(factor: float) -> str:
    if factor <= 0.0:
        return "point the wrong way"
    if 0.5 < factor < 2.0:
        return f"are {abs(factor - 1.0):.2%} too {'large' if factor > 1.0 else 'small'}"
    times, word = (factor, "large") if factor > 1.0 else (1.0 / factor, "small")
    return f"are {times:.{0 if times > 100.0 else 1}f} times too {word}"


@rule("loss-differs", ERROR, remedy="compute the loss, and what leads to it, in float32")
def loss_differs(evidence: Evidence) -> Iterator[Found]:
    """The first loss is not that of float64, by more than 16 bits explain."""
    ratio, losses = loss_ratio(evidence.compared), first_losses(evidence.compared)
    if ratio is None or losses is None or ratio < LOSS_ERROR.value:
        return
    if evidence.amplified is None and ill_conditioned(evidence.compared):
        return
    message = f"the first loss is {losses.amp:.6g}, in float64 it is {losses.exact:.6g}"
    yield _placed(message, evidence.amplified, step=0)


@rule(
    "gradients-underflow",
    WARNING,
    remedy="scale the loss (torch.amp.GradScaler), raise its scale, or train in bfloat16",
)
def gradients_underflow(evidence: Evidence) -> Iterator[Found]:
    """float16 has nothing between 0 and 6e-8: elements below are lost, and nothing says so."""
    trace = evidence.amp
    if low_dtype(trace) is not torch.float16:
        return
    scale, first = trace.first_scale or 1.0, trace.first(Backward)
    exact = evidence.compared.exact.gradients
    largest = max((value.norm().item() for value in exact.values()), default=0.0)
    for name, actual in trace.gradients.items():
        expected = exact.get(name)
        if expected is None or expected.shape != actual.shape or not expected.norm().item() > 1e-6 * largest:
            continue
        # What is zero in exact arithmetic (the bias of a key in attention) is rounding error even in float64.
        there = expected.abs() > max(torch.finfo(torch.float32).tiny, 1e-6 * expected.abs().max().item())
        count = int(there.sum())
        # An element far above float16's least number was not flushed: its unit is off here and on there.
        low = expected.abs() * scale < 2.0**-10
        share = int((there & low & (actual == 0)).sum()) / count if count else 0.0
        full = evidence.fp32.gradients.get(name)
        own = int((there & (full == 0)).sum()) / count if count and full is not None else 0.0
        if share - own > FLUSHED:
            yield Found(
                message=f"{share:.0%} of the gradient of {name} is flushed to zero",
                module=name.rpartition(".")[0] or None,
                where=first.where if first is not None else None,
                step=0,
            )
            return


def _stands_out(compared: Compared) -> bool:
    """Whether wrong gradients are a fault although no op was found that makes them wrong."""
    return total_error(compared) > UNPLACED_ERROR and not ill_conditioned(compared)


@rule(
    "integers-in-16-bits",
    ERROR,
    remedy="keep integers as they are, in another tensor: float16 holds all of them up to 2048, bfloat16 up to 256",
)
def integers_in_16_bits(evidence: Evidence) -> Iterator[Found]:
    """Numbers of rows or classes that travel beside 16-bit features come out as other numbers."""
    for event in evidence.amp.of(IntegersRounded):
        yield at(event, f"{event.share:.0%} of these integers become others in {dtype_name(event.dtype)}")


@rule("sum-stagnates", WARNING, remedy="carry the sum in float32: start it as a float32 tensor, and cast the result")
def sum_stagnates(evidence: Evidence) -> Iterator[Found]:
    """A term below half a unit in the last place of the sum adds nothing, however many come."""
    for event in evidence.amp.of(SumStagnates):
        message = f"after {event.count} additions in {dtype_name(event.dtype)} most of this sum no longer changes"
        yield at(event, message, op=event.op)


@rule("loss-in-16-bits", WARNING, remedy="compute the loss on float32: loss_fn(output.float(), target)")
def loss_in_16_bits(evidence: Evidence) -> Iterator[Found]:
    """A mean of many small terms in 16 bits loses them, and squares overflow float16 from 256 on."""
    for event in evidence.amp.events:
        if isinstance(event, LossScaled | Backward) and event.dtype is not None and event.dtype.itemsize == 2:
            message = f"the loss is computed in {dtype_name(event.dtype)}"
            yield Found(message=message, where=event.where, step=event.step)
            return


ROOMY = 10.0
"""Bits between the largest float16 value of backward and 65504 from which an initial scale is small."""


@rule(
    "initial-loss-scale-unsuitable",
    NOTE,
    remedy="torch.amp.GradScaler(init_scale=...) starts where the scale would settle",
)
def initial_scale(evidence: Evidence) -> Iterator[Found]:
    """Too large an initial scale costs the first steps, too small a one the smallest gradients."""
    trace = evidence.amp
    scale, peaks = trace.first_scale, peaks_of_backward(trace)
    lost = any(not math.isfinite(loss) for _, loss in trace.losses)
    if scale is None or not peaks or max(peaks) == 0.0 or lost:
        return
    skipped, settled = len(trace.skipped_steps), evidence.runs.settled
    if settled is not None and settled.never:
        return
    if settled is not None:
        yield Found(
            message=f"backward overflows at loss scale {settled.own:g}, and the case has too few batches for it to "
            f"settle: it is audited from {settled.start:g} on; no fault, but the steps before train nothing"
        )
        return
    if not math.isfinite(max(peaks)):
        if skipped and trace.scales:
            yield Found(
                message=f"backward overflows at loss scale {scale:g}; "
                f"after {skipped} skipped steps it is {trace.scales[-1]:g}: no fault, but those steps train nothing"
            )
        return
    headroom = math.log2(65504.0 / max(peaks))
    if headroom < ROOMY:
        return
    best = 2.0 ** math.floor(math.log2(scale) + headroom - 2.0)
    yield Found(
        message=f"the largest float16 value in backward is {max(peaks):.3g} at loss scale {scale:g}: "
        f"{headroom:.1f} bits below 65504; an initial scale of {best:g} leaves 2 to 3 bits"
    )


def _finite(evidence: Evidence) -> bool:
    return evidence.amp.failure is None and all(
        bool(value.isfinite().all()) for value in evidence.amp.gradients.values()
    )
