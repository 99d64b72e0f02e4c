"""The order of scale, backward, unscale_, step and update, and what goes between them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import torch

from amp_checks.audit import measures
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.runs.plan import REHEARSED_AT, Evidence
from amp_checks.audit.watching.trace import Event, Kind, Trace

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_COMPARISONS = {"aten::eq", "aten::ne", "aten::isnan", "aten::isinf"}


@rule("loss-not-scaled", ERROR, remedy="call scaler.scale(loss).backward() for every loss of the step")
def loss_not_scaled(evidence: Evidence) -> Iterator[Found]:
    """`GradScaler.step` divides by the loss scale: gradients of a loss that was not scaled come out too small."""
    for event in evidence.amp.of(Kind.SCALER_STEP, Kind.UNSCALE):
        if event.data["plain_at"] is not None:
            yield Found(
                message="the scaler divides these gradients by the loss scale, but this loss was not scaled",
                where=event.data["plain_at"] or event.where,
                step=event.step,
            )


@rule("loss-scaling-missing", WARNING, remedy="train float16 with torch.amp.GradScaler, or in bfloat16 without")
def no_loss_scaling(evidence: Evidence) -> Iterator[Found]:
    """float16 gradients below 6e-8 are zero; a loss scale is what keeps them."""
    trace = evidence.amp
    disabled_itself = any(event.data["asked"] and not event.data["enabled"] for event in trace.of(Kind.SCALER))
    unscales = any(event.data["enabled"] for event in trace.of(Kind.SCALER_STEP))  # then a loss was not scaled
    by_hand = next(trace.of(Kind.SCALED_BY_HAND), None) is not None
    if trace.scaled or by_hand or unscales or disabled_itself or not _uses(trace, torch.float16):
        return
    first = next(trace.of(Kind.BACKWARD), None)
    if first is not None:
        yield at(first, "a float16 program differentiates a loss that nothing scales")


@rule(
    "manual-loss-scale-not-undone",
    ERROR,
    remedy="divide the gradients by that same constant between backward and the step; torch.amp.GradScaler does it",
)
def hand_scale_not_undone(evidence: Evidence) -> Iterator[Found]:
    """A loss that is multiplied by a large power of two is scaled: its gradients are as much too large."""
    for event in evidence.amp.of(Kind.SCALED_BY_HAND):
        if not event.data["undone"] and not evidence.amp.scaled and _uses(evidence.amp, torch.float16):
            yield at(event, f"the loss is multiplied by {event.data['factor']:g}, and this step's gradients still are")


@rule("manual-loss-scale-constant", NOTE, remedy="torch.amp.GradScaler skips such a step, and lowers the scale")
def scaled_by_hand(evidence: Evidence) -> Iterator[Found]:
    """A constant loss scale is right as long as no gradient overflows."""
    for event in evidence.amp.of(Kind.SCALED_BY_HAND):
        if event.data["undone"] and not evidence.amp.scaled and _uses(evidence.amp, torch.float16):
            yield at(
                event,
                f"the loss is multiplied by {event.data['factor']:g} and its gradients are divided by it: see that a "
                "step whose gradients overflow is skipped",
            )


@rule("loss-scaled-twice", ERROR, remedy="scale each loss once")
def scaled_twice(evidence: Evidence) -> Iterator[Found]:
    """Gradients are divided by the scale once."""
    for event in evidence.amp.of(Kind.SCALE):
        if event.data["already"]:
            yield at(event, f"this loss was scaled by {event.data['already']:g} before")


@rule(
    "scaled-gradients-modified", ERROR, remedy="call scaler.unscale_(optimizer) before gradients are clipped or changed"
)
def scaled_gradients_changed(evidence: Evidence) -> Iterator[Found]:
    """A norm or a bound for gradients means unscaled ones: scaled ones are some 65536 times as large.

    A division by the world size, say, commutes with the scale: that the gradients of the step are right shows it.
    """
    right = measures.commutes_with_the_scale(evidence)
    lines = set()  # a bound from below and one from above are one clipping
    for event in evidence.amp.of(Kind.GRADIENT_WRITTEN):
        if event.data["late"] or event.where in lines:
            continue
        lines.add(event.where)
        message = f"{event.data['op']} changes gradients that are still scaled"
        found = at(event, message, op=event.data["op"])
        if right:
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
def gradients_depend_on_scale(evidence: Evidence) -> Iterator[Found]:
    """Hooks, custom functions and later losses that meet scaled gradients must know it: a bound, a norm, a term."""
    found = measures.worst_dependence(evidence)
    if found is None:
        return
    name, error = found
    culprit = evidence.culprit
    by = f": {culprit.op} takes scaled gradients, in backward, for unscaled ones" if culprit is not None else ""
    yield Found(
        message=f"the loss scale alone changes the unscaled gradient of {name} by {100 * error:.2g} %{by}",
        where=culprit.where if culprit is not None else None,
        op=culprit.op if culprit is not None else None,
        module=name if culprit is None else None,
    )


@rule("gradients-modified-after-step", WARNING, remedy="change gradients before scaler.step(optimizer)")
def gradients_changed_late(evidence: Evidence) -> Iterator[Found]:
    """After the step nothing reads them any more."""
    for event in evidence.amp.of(Kind.GRADIENT_WRITTEN):
        if event.data["late"]:
            yield at(event, f"{event.data['op']} changes gradients after the step that used them", op=event.data["op"])


@rule(
    "scaled-gradients-read",
    WARNING,
    remedy="read gradients after scaler.unscale_(optimizer), or divide by scaler.get_scale()",
)
def scaled_gradients_read(evidence: Evidence) -> Iterator[Found]:
    """What is logged or decided on scaled gradients changes with the loss scale. A test for finiteness does not."""
    written = {event.where for event in evidence.amp.of(Kind.GRADIENT_WRITTEN)}
    reads = list(evidence.amp.of(Kind.GRADIENT_READ))
    tests = {event.where for event in reads if event.data["op"].partition(".")[0] in _COMPARISONS}
    for event in reads:
        if event.where not in written and event.where not in tests:
            yield at(event, f"{event.data['op']} reads gradients that are still scaled", op=event.data["op"])


@rule(
    "gradients-unscaled-mid-accumulation",
    ERROR,
    remedy="call scaler.unscale_(optimizer) once, after the last micro-batch",
)
def unscaled_mid_accumulation(evidence: Evidence) -> Iterator[Found]:
    """Scaled gradients are added to unscaled ones, which then count for nothing."""
    for event in evidence.amp.of(Kind.BACKWARD):
        if event.data.get("onto_unscaled"):
            yield at(event, f"scaled gradients are added to the unscaled gradient of {event.data['onto_unscaled']}")


@rule("scaler-updated-mid-accumulation", ERROR, remedy="call scaler.update() once per step of the optimizer, after it")
def updated_mid_accumulation(evidence: Evidence) -> Iterator[Found]:
    """An update may change the scale: micro-batches of two scales then share one gradient."""
    for event in evidence.amp.of(Kind.BACKWARD):
        if event.data.get("after_update"):
            yield at(
                event,
                f"the gradient of {event.data['after_update']} is accumulated across a scaler.update(), "
                "which may change the loss scale",
            )


@rule("scaler-bypassed", ERROR, remedy="call scaler.step(optimizer) in place of optimizer.step()")
def scaler_bypassed(evidence: Evidence) -> Iterator[Found]:
    """`GradScaler.step` unscales, and skips the step where a gradient is not finite."""
    for event in evidence.amp.of(Kind.OPTIMIZER_STEP):
        if event.data["scaled"]:
            yield at(event, "optimizer.step() uses gradients that are still scaled")
        elif event.data["unscaled"]:
            yield at(event, "optimizer.step() after scaler.unscale_: a step with infinite gradients is not skipped")


@rule("scaler-update-missing", ERROR, remedy="call scaler.update() at the end of each iteration")
def update_missing(evidence: Evidence) -> Iterator[Found]:
    """Without it the scale never adapts, and the next unscale_ or step raises."""
    trace = evidence.amp
    steps = [event for event in trace.of(Kind.SCALER_STEP) if event.data["enabled"]]
    if steps and trace.failure is None and next(trace.of(Kind.UPDATE), None) is None:
        yield at(steps[-1], "scaler.step is never followed by scaler.update")


@rule(
    "scaler-update-without-step",
    WARNING,
    remedy="call scaler.update() only in iterations that call scaler.step(optimizer)",
)
def update_without_step(evidence: Evidence) -> Iterator[Found]:
    """It counts towards growth of the scale although no step tried the scale."""
    for event in evidence.amp.of(Kind.UPDATE):
        if not event.data["stepped"]:
            yield at(event, "scaler.update() without a scaler.step() since the last one")


@rule("zero-grad-missing", ERROR, remedy="call optimizer.zero_grad() once per step, before its first backward")
def zero_grad_missing(evidence: Evidence) -> Iterator[Found]:
    """Gradients that an optimizer has stepped with are stepped with again; left by GradScaler, they are unscaled."""
    for event in evidence.amp.of(Kind.SCALER_STEP, Kind.OPTIMIZER_STEP):
        if event.data["carried"]:
            yield at(event, f"the gradient of {event.data['carried']} still holds that of the step before")


@rule("inner-gradient-scaled", ERROR, remedy="divide what autograd.grad gives by scaler.get_scale() before using it")
def inner_gradient_scaled(evidence: Evidence) -> Iterator[Found]:
    """A penalty on the gradients of a scaled loss is the square of the scale too large."""
    # Where it is taken back later, gradients do not depend on the loss scale.
    compared = max(evidence.amp.first_real.values(), default=0)
    right = evidence.scaled is not None and measures.worst_dependence(evidence) is None
    for event in evidence.amp.of(Kind.INNER_GRADIENT):
        if right and event.step <= compared:
            continue
        yield at(event, f"{event.data['op']} uses the gradient of a scaled loss as it is", op=event.data["op"])


@rule(
    "scheduler-stepped-on-skipped-step",
    WARNING,
    remedy="step the scheduler only where scaler.update() did not lower scaler.get_scale()",
)
def scheduler_on_skipped_step(evidence: Evidence) -> Iterator[Found]:
    """The schedule runs ahead of the weights. Steps are skipped while the scale settles, and whenever it overflows."""
    for trace in _with_rehearsal(evidence):
        for event in trace.of(Kind.SCHEDULER_STEP):
            if event.data["skipped"] and not event.data["real"]:
                yield at(event, "the scheduler advances although its optimizer's step was skipped")


@rule("average-updated-on-skipped-step", WARNING, remedy="average weights only after a step that was not skipped")
def average_on_skipped_step(evidence: Evidence) -> Iterator[Found]:
    """A skipped step leaves the weights as they were: averaging them again gives them a weight that they have not."""
    for trace in _with_rehearsal(evidence):
        for event in trace.of(Kind.AVERAGED):
            yield at(
                event,
                f"{event.data['op']} averages {event.data['parameter']} after a skipped step",
                op=event.data["op"],
            )


@rule("overflow-applied", ERROR, remedy="step through the scaler, and change no gradient so that an infinity is lost")
def overflow_applied(evidence: Evidence) -> Iterator[Found]:
    """In the rehearsal every gradient of one step is infinite; weights must not show it."""
    trace = evidence.rehearsal
    if trace is None or not evidence.amp_is_finite:
        return
    if trace.optimizers and not trace.took_overflow:
        return  # it diverges by itself
    for name, facts in trace.parameters.items():
        if not facts.finite:
            yield Found(message=f"a rehearsed overflow reaches the weights: {name} is not finite", module=name)
            return


@rule(
    "overflow-hidden",
    ERROR,
    remedy="leave gradients that are not finite as they are: the scaler then skips the step, and lowers the scale",
)
def overflow_hidden(evidence: Evidence) -> Iterator[Found]:
    """A step with gradients that are made up is taken, and the loss scale that made them overflow stays."""
    trace = evidence.rehearsal
    if trace is None:
        return
    for event in trace.of(Kind.BACKWARD):
        if event.data.get("hidden_at"):
            message = "of a rehearsed overflow nothing is left after backward: the scaler cannot see it"
            yield Found(message=message, where=event.data["hidden_at"], step=event.step)
    # What is frozen by zeros takes no part in a step that another optimizer's gradients tell the scaler about.
    told = {event.step for event in trace.of(Kind.SCALER_STEP) if event.data["skipped"]}
    for event in trace.of(Kind.UNSCALE, Kind.SCALER_STEP):
        if event.data.get("hidden") and not (event.data["zero"] and event.step in told):
            message = "a rehearsed overflow is replaced by finite numbers before the scaler sees it: the step is taken"
            yield Found(message=message, where=event.data["hidden_at"] or event.where, step=event.step)
    yield from _unanswered(trace)


def _unanswered(trace: Trace) -> Iterator[Found]:
    """The program finds the overflow by itself and leaves the step out, without its scaler, as often as it comes."""
    steps = list(trace.of(Kind.SCALER_STEP))
    overflows = [event for event in trace.of(Kind.BACKWARD) if event.step == REHEARSED_AT and event.data["scaled"]]
    scales = [next(trace.of(Kind.SCALE)).data["scale"], *trace.scales]
    fell = any(after < before for before, after in itertools.pairwise(scales))
    hidden = any(event.data.get("hidden") for event in trace.of(Kind.UNSCALE, Kind.SCALER_STEP))
    if not overflows or fell or hidden or any(event.data["skipped"] for event in steps) or trace.failure is not None:
        return
    if any(event.step > REHEARSED_AT for event in steps):
        yield Found(
            message="the scaler never learns of a rehearsed overflow: the loss scale that made it stays",
            remedy="call scaler.step(optimizer) and scaler.update() for such a step too: the scaler skips it itself",
            where=overflows[-1].where,
            step=REHEARSED_AT,
        )


@rule(
    "program-raises-on-overflow",
    ERROR,
    remedy="let scaler.step skip the step: infinite gradients are no error while the scale settles",
)
def raises_on_overflow(evidence: Evidence) -> Iterator[Found]:
    """Every float16 training meets infinite gradients now and then: a program must survive one."""
    failure = evidence.rehearsal.failure if evidence.rehearsal is not None else None
    if failure is not None:
        yield Found(
            message=f"when the gradients of a step overflow, the program raises {type(failure.error).__name__}: "
            f"{str(failure.error).splitlines()[0] if str(failure.error) else ''}",
            where=failure.where,
            step=failure.step,
        )


@rule(
    "scaler-with-bfloat16",
    WARNING,
    remedy="leave the scaler out, or make it with enabled=False: bfloat16 has float32's range",
)
def scaler_with_bfloat16(evidence: Evidence) -> Iterator[Found]:
    """It costs a pass over the gradients, and its scale grows without bound."""
    trace = evidence.amp
    low = {dtype for op in trace.ops if not op.backward for dtype in op.outputs if dtype.itemsize == 2}
    scale = next(trace.of(Kind.SCALE), None)
    if scale is not None and torch.bfloat16 in low and torch.float16 not in low:
        yield at(scale, "a loss of a bfloat16 program is scaled")


@rule("scaler-disabled-itself", ERROR, remedy='name the device: torch.amp.GradScaler("cpu")')
def scaler_disabled_itself(evidence: Evidence) -> Iterator[Found]:
    """`GradScaler()` is for cuda; without a CUDA device it warns once and does nothing from then on."""
    for event in evidence.amp.of(Kind.SCALER):
        if event.data["asked"] and not event.data["enabled"]:
            yield at(
                event, f"this GradScaler is for {event.data['device']}, which is not there: it has disabled itself"
            )


@rule("scaler-recreated", WARNING, remedy="make one scaler, before the loop")
def scaler_made_anew(evidence: Evidence) -> Iterator[Found]:
    """Its scale starts over, and never settles."""
    made = [event for event in evidence.amp.of(Kind.SCALER) if event.step >= 1 and event.data["enabled"]]
    if made:
        yield at(made[0], "a new GradScaler is made in the loop, so the loss scale never settles")


@rule(
    "optimizers-out-of-step",
    WARNING,
    remedy="find what overflows, or skip the other optimizers as well when one is skipped",
)
def optimizers_out_of_step(evidence: Evidence) -> Iterator[Found]:
    """The scale is shared, but each optimizer is skipped by itself: one trains on while the other stands still."""
    skips: dict[int, int] = {}
    steps: dict[int, int] = {}
    last: dict[int, Event] = {}
    for event in evidence.amp.of(Kind.SCALER_STEP):
        number = event.data["optimizer"]
        steps[number] = steps.get(number, 0) + 1
        skips[number] = skips.get(number, 0) + event.data["skipped"]
        last[number] = event
    if len(skips) < 2:
        return
    most, least = max(skips, key=lambda n: skips[n]), min(skips, key=lambda n: skips[n])
    if skips[most] - skips[least] >= 2 and skips[most] * 2 > steps[most]:
        names = evidence.amp.optimizers
        yield at(
            last[most],
            f"{names[most]} {most} skipped {skips[most]} of {steps[most]} steps, "
            f"{names[least]} {least} only {skips[least]}",
        )


@rule(
    "parameter-never-updated",
    ERROR,
    remedy="lower this term's gradients, or compute it in float32, so that its steps are not skipped",
)
def never_updated(evidence: Evidence) -> Iterator[Found]:
    """A term whose gradients always overflow never trains, and scaler.step gives no sign."""
    trace = evidence.amp
    if not any(facts.stepped for facts in trace.parameters.values()):
        return
    for name, facts in trace.parameters.items():
        if facts.skipped >= 2 and not facts.stepped:
            origin = evidence.origins.gradient if evidence.origins is not None else None
            yield Found(
                message=f"{name} had a gradient in {facts.skipped} steps, and each of them was skipped",
                module=name,
                where=origin.where if origin is not None else None,
                op=origin.op if origin is not None else None,
            )
            return


@rule(
    "steps-skipped",
    WARNING,
    remedy="find what overflows: the first non-finite gradient is placed above, where there is one",
)
def steps_skipped(evidence: Evidence) -> Iterator[Found]:
    """While the scale settles, steps are skipped; later, one may be just after the scale grew. More is a fault."""
    trace = evidence.amp
    steps = list(trace.of(Kind.SCALER_STEP))
    skipped = [event for event in steps if event.data["skipped"]]
    if not skipped or trace.failure is not None:
        return
    if len(skipped) == len(steps) and len(steps) >= 4:
        last = f"; the scale fell to {trace.scales[-1]:g}" if trace.scales else ""
        yield at(skipped[0], f"all {len(steps)} steps were skipped{last}")
        return
    good, unexplained = 0.0, []
    for event, scale in zip(steps, trace.scales_before(len(steps)), strict=False):
        if not event.data["skipped"]:
            good = max(good, scale)
        elif scale <= good:
            unexplained.append(event)
    if len(unexplained) > max(1, len(steps) // 5):
        yield at(
            unexplained[0],
            f"{len(unexplained)} of {len(steps)} steps were skipped at loss scales at which others were not",
        )


def _uses(trace: Trace, dtype: torch.dtype) -> bool:
    return any(not op.backward and dtype in op.outputs for op in trace.ops)


def _with_rehearsal(evidence: Evidence) -> Iterator[Trace]:
    yield evidence.amp
    if evidence.rehearsal is not None:
        yield evidence.rehearsal
