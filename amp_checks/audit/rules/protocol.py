"""The order of scale, backward, unscale_, step and update, and what goes between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from amp_checks.audit import measures
from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.watching.events import (
    Backward,
    GradientsCleared,
    GradientsRead,
    GradientsWritten,
    InnerGradientUsed,
    LossScaled,
    LossScaleRead,
    ManualLossScale,
    OptimizerStep,
    ScalerMade,
    ScalerRaised,
    ScalerStep,
    ScalerUpdated,
    Unscaled,
)

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_COMPARISONS = {"aten::eq", "aten::ne", "aten::isnan", "aten::isinf"}


@rule("loss-not-scaled", ERROR, remedy="call scaler.scale(loss).backward() for every loss of the step")
def loss_not_scaled(evidence: Evidence) -> Iterator[Found]:
    """`GradScaler.step` divides by the loss scale: gradients of a loss that was not scaled come out too small."""
    for event in evidence.amp.events:
        if isinstance(event, ScalerStep | Unscaled) and event.plain_at is not None:
            yield Found(
                message="the scaler divides these gradients by the loss scale, but this loss was not scaled",
                where=event.plain_at or event.where,
                step=event.step,
            )


@rule("loss-scaling-missing", WARNING, remedy="train float16 with torch.amp.GradScaler, or in bfloat16 without")
def loss_scaling_missing(evidence: Evidence) -> Iterator[Found]:
    """float16 gradients below 6e-8 are zero; a loss scale is what keeps them."""
    trace = evidence.amp
    disabled_itself = any(event.asked and not event.enabled for event in trace.of(ScalerMade))
    unscales = any(event.enabled for event in trace.of(ScalerStep))  # then a loss was not scaled
    scales = trace.scaled or trace.first(ManualLossScale) is not None
    first = trace.first(Backward)
    low = any(op.backward and torch.float16 in op.outputs for op in trace.ops)
    if first is None or scales or unscales or disabled_itself or not low or torch.float16 not in trace.low_dtypes():
        return
    yield at(first, "a float16 program differentiates a loss that nothing scales")


def _manual_scales(evidence: Evidence, *, undone: bool) -> Iterator[ManualLossScale]:
    if not evidence.amp.scaled and torch.float16 in evidence.amp.low_dtypes():
        yield from (event for event in evidence.amp.of(ManualLossScale) if event.undone is undone)


@rule(
    "manual-loss-scale-not-undone",
    ERROR,
    remedy="divide the gradients by that same constant between backward and the step; torch.amp.GradScaler does it",
)
def manual_scale_not_undone(evidence: Evidence) -> Iterator[Found]:
    """A loss that is multiplied by a large power of two is scaled: its gradients are as much too large."""
    for event in _manual_scales(evidence, undone=False):
        yield at(event, f"the loss is multiplied by {event.factor:g}, and this step's gradients still are")


@rule("manual-loss-scale-constant", NOTE, remedy="torch.amp.GradScaler skips such a step, and lowers the scale")
def manual_scale_constant(evidence: Evidence) -> Iterator[Found]:
    """A constant loss scale is right as long as no gradient overflows."""
    for event in _manual_scales(evidence, undone=True):
        yield at(
            event,
            f"the loss is multiplied by {event.factor:g} and its gradients are divided by it: see that a "
            "step whose gradients overflow is skipped",
        )


@rule("loss-scaled-twice", ERROR, remedy="scale each loss once")
def loss_scaled_twice(evidence: Evidence) -> Iterator[Found]:
    """Gradients are divided by the scale once."""
    for event in evidence.amp.of(LossScaled):
        if event.already:
            yield at(event, f"this loss was scaled by {event.already:g} before")


@rule(
    "scaled-gradients-modified", ERROR, remedy="call scaler.unscale_(optimizer) before gradients are clipped or changed"
)
def scaled_gradients_modified(evidence: Evidence) -> Iterator[Found]:
    """A norm or a bound for gradients means unscaled ones: scaled ones are some 65536 times as large.

    A division by the world size, say, commutes with the scale: that the gradients of the step are right shows it.
    """
    for step in evidence.amp.events:
        if isinstance(step, ScalerStep | Unscaled) and step.undone_at is not None:
            yield Found(
                message="gradients are divided by the loss scale here, and once more by the scaler",
                remedy="leave this division out, or call scaler.unscale_(optimizer) in its place",
                where=step.undone_at or step.where,
                step=step.step,
            )
    lines = set()  # a bound from below and one from above are one clipping
    for event in evidence.amp.of(GradientsWritten):
        if event.late or event.where in lines:
            continue
        lines.add(event.where)
        message = f"{event.op} changes gradients that are still scaled"
        found = at(event, message, op=event.op)
        if measures.commutes_with_the_scale(evidence.compared):
            found = dataclasses.replace(
                found,
                message=f"{message}, in a way that commutes with the loss scale here: the step's gradients are right",
                severity=NOTE,
                remedy="none, as long as it commutes; else call scaler.unscale_(optimizer) before",
            )
        yield found


@rule(
    "gradients-depend-on-loss-scale",
    ERROR,
    remedy="divide gradients of a scaled loss by scaler.get_scale() before they are used, or multiply what they meet "
    "by it; better, change them after scaler.unscale_(optimizer)",
)
def gradients_depend_on_loss_scale(evidence: Evidence) -> Iterator[Found]:
    """Hooks, custom functions and later losses that meet scaled gradients must know it: a bound, a norm, a term."""
    if evidence.dependence is None:
        return
    name, error = evidence.dependence
    message = f"the loss scale alone changes the unscaled gradient of {name} by {100 * error:.2g} %"
    source = evidence.source_op
    if source is None:
        yield Found(message=message, module=name)
    else:
        message += f": {source.op} takes scaled gradients, in backward, for unscaled ones"
        yield Found(message=message, where=source.where, op=source.op)


@rule("gradients-modified-after-step", WARNING, remedy="change gradients before scaler.step(optimizer)")
def gradients_modified_after_step(evidence: Evidence) -> Iterator[Found]:
    """After the step nothing reads them any more."""
    for event in evidence.amp.of(GradientsWritten):
        if event.late:
            yield at(event, f"{event.op} changes gradients after the step that used them", op=event.op)


@rule(
    "scaled-gradients-read",
    WARNING,
    remedy="read gradients after scaler.unscale_(optimizer), or divide by scaler.get_scale()",
)
def scaled_gradients_read(evidence: Evidence) -> Iterator[Found]:
    """What is logged or decided on scaled gradients changes with the loss scale. A test for finiteness does not."""
    reads = evidence.amp.of(GradientsRead)
    meant = {event.where for event in evidence.amp.of(GradientsWritten)}
    meant |= {event.where for event in reads if event.op.partition(".")[0] in _COMPARISONS}
    # A Python number carries no mark: that the same function computes with the loss scale is all that can be seen.
    unscaled = {(event.step, event.function) for event in evidence.amp.of(LossScaleRead)}
    for event in reads:
        if event.where not in meant and (event.step, event.function) not in unscaled:
            yield at(event, f"{event.op} reads gradients that are still scaled", op=event.op)


@rule(
    "gradients-unscaled-mid-accumulation",
    ERROR,
    remedy="call scaler.unscale_(optimizer) once, after the last micro-batch",
)
def gradients_unscaled_mid_accumulation(evidence: Evidence) -> Iterator[Found]:
    """Scaled gradients are added to unscaled ones, which then count for nothing."""
    for event in evidence.amp.of(Backward):
        if event.onto_unscaled:
            yield at(event, f"scaled gradients are added to the unscaled gradient of {event.onto_unscaled}")


@rule("scaler-updated-mid-accumulation", ERROR, remedy="call scaler.update() once per step of the optimizer, after it")
def scaler_updated_mid_accumulation(evidence: Evidence) -> Iterator[Found]:
    """An update may change the scale: micro-batches of two scales then share one gradient."""
    for event in evidence.amp.of(Backward):
        if event.after_update:
            yield at(
                event,
                f"the gradient of {event.after_update} is accumulated across a scaler.update(), "
                "which may change the loss scale",
            )


@rule("scaler-bypassed", ERROR, remedy="call scaler.step(optimizer) in place of optimizer.step()")
def scaler_bypassed(evidence: Evidence) -> Iterator[Found]:
    """`GradScaler.step` unscales, and skips the step where a gradient is not finite."""
    for event in evidence.amp.of(OptimizerStep):
        if event.again is not None:
            message = (
                f"optimizer.step() takes the gradients of scaler.step at {event.again} once more: they count twice, "
                "and a step that the scaler skips is taken here"
            )
            yield dataclasses.replace(at(event, message), remedy="leave this optimizer.step() out")
        elif event.scaled:
            yield at(event, "optimizer.step() uses gradients that are still scaled")
        elif event.unscaled:
            yield at(event, "optimizer.step() after scaler.unscale_: a step with infinite gradients is not skipped")


@rule("scaler-update-missing", ERROR, remedy="call scaler.update() at the end of each iteration")
def scaler_update_missing(evidence: Evidence) -> Iterator[Found]:
    """Without it the scale never adapts, and the next unscale_ or step raises."""
    trace = evidence.amp
    steps = [event for event in trace.of(ScalerStep) if event.enabled]
    raised = trace.first(ScalerRaised) is not None  # the second step says so itself
    if steps and trace.failure is None and trace.first(ScalerUpdated) is None and not raised:
        yield at(steps[-1], "scaler.step is never followed by scaler.update")


@rule(
    "scaler-update-without-step",
    WARNING,
    remedy="call scaler.update() only in iterations that call scaler.step(optimizer)",
)
def scaler_update_without_step(evidence: Evidence) -> Iterator[Found]:
    """It counts towards growth of the scale although no step tried the scale."""
    for event in evidence.amp.of(ScalerUpdated):
        if not event.stepped:
            yield at(event, "scaler.update() without a scaler.step() since the last one")


@rule("zero-grad-missing", ERROR, remedy="call optimizer.zero_grad() once per step, before its first backward")
def zero_grad_missing(evidence: Evidence) -> Iterator[Found]:
    """Gradients that an optimizer has stepped with are stepped with again; left by GradScaler, they are unscaled."""
    for event in evidence.amp.events:
        if isinstance(event, ScalerStep | OptimizerStep) and event.carried:
            yield at(event, f"the gradient of {event.carried} still holds that of the step before")


@rule(
    "gradients-cleared-before-step",
    ERROR,
    remedy="clear gradients before backward, or after the step: optimizer.zero_grad() at the start of an iteration",
)
def gradients_cleared_before_step(evidence: Evidence) -> Iterator[Found]:
    """The step then moves nothing, or by weight decay and momentum alone."""
    for event in evidence.amp.of(GradientsCleared):
        yield at(event, "gradients are cleared here, after backward and before the step, which finds none")


@rule("inner-gradient-scaled", ERROR, remedy="divide what autograd.grad gives by scaler.get_scale() before using it")
def inner_gradient_scaled(evidence: Evidence) -> Iterator[Found]:
    """A penalty on the gradients of a scaled loss is the square of the scale too large."""
    compared = max(evidence.amp.first_real.values(), default=0)
    for event in evidence.amp.of(InnerGradientUsed):
        # Where it is taken back later, gradients do not depend on the loss scale.
        if event.step <= compared and evidence.scaled is not None and evidence.dependence is None:
            continue
        yield at(event, f"{event.op} uses the gradient of a scaled loss as it is", op=event.op)
