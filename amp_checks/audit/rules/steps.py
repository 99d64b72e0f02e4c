"""What meets in a step of a scaler: optimizers, scalers and updates that do not belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.watching.events import Backward, ScalerStep

ERROR = Severity.ERROR


@rule(
    "closure-with-scaler",
    ERROR,
    remedy="call the closure before scaler.step(optimizer), and do not hand it on; what must call it several times "
    "(LBFGS) trains in bfloat16, without a scaler",
)
def closure_with_scaler(evidence: Evidence) -> Iterator[Found]:
    """The optimizer calls it after the scaler has unscaled: its gradients are scaled, and may be infinite."""
    for event in evidence.amp.of(ScalerStep):
        if event.closure and evidence.amp.failure is None:  # of a closure by name the scaler itself complains
            yield at(event, "scaler.step hands a closure to the optimizer, which makes gradients that nothing unscales")


@rule(
    "scaler-updated-before-step", ERROR, remedy="call scaler.update() once, after the last scaler.step of the iteration"
)
def scaler_updated_before_step(evidence: Evidence) -> Iterator[Found]:
    """An update may change the scale: the step then divides by another one than the loss was multiplied by."""
    accumulated = {event.step for event in evidence.amp.of(Backward) if event.after_update}  # another rule's
    for event in evidence.amp.of(ScalerStep):
        if event.updated_at is not None and not accumulated:
            message = "scaler.update() comes between the backward and a step that uses its gradients"
            yield dataclasses.replace(at(event, message), where=event.updated_at)


@rule(
    "scalers-mixed", ERROR, remedy="scale every loss whose gradients meet in a step by the scaler that makes that step"
)
def scalers_mixed(evidence: Evidence) -> Iterator[Found]:
    """A step divides all of its gradients by its own scaler's loss scale."""
    for event in evidence.amp.of(ScalerStep):
        if event.other_scale is not None:
            name, scale, where = event.other_scale
            message = f"the gradient of {name} was scaled by {scale:g}, and is divided by another one, {event.scale:g}"
            yield dataclasses.replace(at(event, message), where=where or event.where)


@rule("parameter-in-two-optimizers", ERROR, remedy="give each parameter to one optimizer")
def parameter_in_two_optimizers(evidence: Evidence) -> Iterator[Found]:
    """Each optimizer's step divides the gradient by the loss scale, and moves the parameter: both happen twice."""
    for event in evidence.amp.of(ScalerStep):
        if event.shared is not None:
            message = f"{event.shared} is held by two optimizers: its gradient is divided by the loss scale for each"
            yield at(event, message)
            return
