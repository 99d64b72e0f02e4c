"""How a scaler is made, and which steps it skips for how long."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import torch

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.watching.events import LossScaled, ScalerMade, ScalerStep
from amp_checks.audit.watching.trace import Trace

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@rule(
    "scaler-with-bfloat16",
    WARNING,
    remedy="leave the scaler out, or make it with enabled=False: bfloat16 has float32's range",
)
def scaler_with_bfloat16(evidence: Evidence) -> Iterator[Found]:
    """It costs a pass over the gradients, and its scale grows without bound."""
    first = evidence.amp.first(LossScaled)
    if first is not None and evidence.amp.low_dtypes() == {torch.bfloat16}:
        yield at(first, "a loss of a bfloat16 program is scaled")


@rule("scaler-disabled-itself", ERROR, remedy='name the device: torch.amp.GradScaler("cpu")')
def scaler_disabled_itself(evidence: Evidence) -> Iterator[Found]:
    """`GradScaler()` is for cuda; without a CUDA device it warns once and does nothing from then on."""
    for event in evidence.amp.of(ScalerMade):
        if event.asked and not event.enabled:
            yield at(event, f"this GradScaler is for {event.device}, which is not there: it has disabled itself")


@rule("scaler-recreated", WARNING, remedy="make one scaler, before the loop")
def scaler_recreated(evidence: Evidence) -> Iterator[Found]:
    """Its scale starts over, and never settles. One that loads the state of the one before goes on from there."""
    trace = evidence.amp
    made = [event for event in trace.of(ScalerMade) if event.step >= 1 and event.enabled]
    made = [event for event in made if event.number not in trace.restored_scalers]
    if len(made) == 1:
        message = "a new GradScaler is made in the loop, and loads no state: the loss scale starts over"
        yield dataclasses.replace(
            at(made[0], message), remedy="load the state_dict() of the one before, or keep that one"
        )
    elif made:
        yield at(made[0], "a new GradScaler is made in the loop, so the loss scale never settles")


@rule(
    "optimizers-out-of-step",
    WARNING,
    remedy="find what overflows, or skip the other optimizers as well when one is skipped",
)
def optimizers_out_of_step(evidence: Evidence) -> Iterator[Found]:
    """The scale is shared, but each optimizer is skipped by itself: one trains on while the other stands still."""
    last = {event.optimizer: event for event in evidence.amp.of(ScalerStep)}
    steps = Counter(event.optimizer for event in evidence.amp.of(ScalerStep))
    skips = Counter(event.optimizer for event in evidence.amp.skipped_steps)
    if len(steps) < 2:
        return
    most, least = max(steps, key=lambda n: skips[n]), min(steps, key=lambda n: skips[n])
    settled = not last[most].skipped and not _unexplained(evidence.amp, most)
    if skips[most] - skips[least] >= 2 and skips[most] * 2 > steps[most] and not settled:
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
def parameter_never_updated(evidence: Evidence) -> Iterator[Found]:
    """A term whose gradients always overflow never trains, and scaler.step gives no sign."""
    trace = evidence.amp
    if not any(facts.stepped for facts in trace.parameters.values()):
        return
    for name, facts in trace.parameters.items():
        if facts.skipped >= 2 and not facts.stepped:
            source = evidence.sources.gradient if evidence.sources is not None else None
            yield Found(
                message=f"{name} had a gradient in {facts.skipped} steps, and each of them was skipped",
                module=name,
                where=source.where if source is not None else None,
                op=source.op if source is not None else None,
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
    steps, skipped = trace.of(ScalerStep), trace.skipped_steps
    if not skipped or trace.failure is not None:
        return
    settled = evidence.runs.settled
    if settled is not None and settled.never and len(skipped) == len(steps):
        message = f"every step is skipped, at every loss scale from {settled.own:g} down to {trace.scales[-1]:g}"
        yield dataclasses.replace(at(skipped[0], message), severity=ERROR)
        return
    if len(skipped) == len(steps) and len(steps) >= 4:
        last = f"; the scale fell to {trace.scales[-1]:g}" if trace.scales else ""
        yield at(skipped[0], f"all {len(steps)} steps were skipped{last}")
        return
    for number in range(len(trace.optimizers)):
        own = [event for event in steps if event.optimizer == number]
        first = next((place for place, event in enumerate(own) if not event.skipped), len(own))
        late = [event for event in own[first:] if event.skipped]
        if len(late) >= 3 and 3 * len(late) >= len(own[first:]) and not _unexplained(trace, number):
            message = f"{len(late)} of the {len(own[first:])} steps from the first that was taken on are skipped: the "
            remedy = "let scaler.update() adapt the scale: no new_scale, and a growth_interval of hundreds of steps"
            found = at(late[0], message + "loss scale goes up again each time")
            yield dataclasses.replace(found, remedy=remedy)
            return
    unexplained = [event for number in range(len(trace.optimizers)) for event in _unexplained(trace, number)]
    if len(unexplained) > max(1, len(steps) // 5):
        yield at(
            unexplained[0],
            f"{len(unexplained)} of {len(steps)} steps were skipped at loss scales at which others were not",
        )


def _unexplained(trace: Trace, optimizer: int) -> list[ScalerStep]:
    """The steps of an optimizer that were skipped at a loss scale at which one of it was taken before."""
    good, found = 0.0, []
    for event in trace.of(ScalerStep):
        if event.optimizer != optimizer:
            continue
        if not event.skipped:
            good = max(good, event.scale)
        elif event.scale <= good:
            found.append(event)
    return found
