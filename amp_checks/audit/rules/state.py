"""What outlives a step: weights, buffers, counters, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.watching.events import (
    Backward,
    CheckpointSaved,
    GradientsRead,
    ModelConverted,
    StateCarried,
    WeightsRounded,
)
from amp_checks.torch_api.dtypes import LOW, dtype_name

ERROR, WARNING = Severity.ERROR, Severity.WARNING

STALLED = 0.5
"""Share of a 16-bit weight's elements that a step must at least change, of those with a gradient."""


@rule("weights-in-16-bits", WARNING, remedy="keep parameters in float32 (no .half()), and let autocast cast them")
def sixteen_bit_weights(evidence: Evidence) -> Iterator[Found]:
    """An update below half a unit in the weight's last place is no update; GradScaler refuses float16 gradients."""
    for event in evidence.amp.of(ModelConverted):
        message = (
            f"the loop converts trained parameters to {dtype_name(event.dtype)}, {event.parameter} among them: no "
        )
        found = at(event, message + "float32 weights are left")
        yield dataclasses.replace(found, severity=ERROR)
    trained = {name: facts for name, facts in evidence.amp.parameters.items() if facts.trained and facts.dtype in LOW}
    if not trained:
        return
    stalled = {
        name: facts.moved for name, facts in trained.items() if facts.moved is not None and facts.moved < STALLED
    }
    name = min(stalled, key=lambda key: stalled[key] or 0.0) if stalled else next(iter(trained))
    dtype = dtype_name(trained[name].dtype)
    message = f"{len(trained)} trained parameters are {dtype}, among them {name}"
    if stalled:
        message += f", of which the last step changed only {stalled[name]:.0%}"
    severe = bool(stalled) or dtype == "float16"
    yield Found(message=message, module=name, severity=ERROR if severe else None)


@rule(
    "weights-rounded", WARNING, remedy="keep the 16-bit copy apart, and leave the float32 weights as the step made them"
)
def weights_rounded(evidence: Evidence) -> Iterator[Found]:
    """What the last steps added below the 16-bit grid is lost."""
    for event in evidence.amp.of(WeightsRounded):
        dtype = dtype_name(event.dtype)
        yield at(event, f"float32 weights, {event.parameter} among them, are overwritten with {dtype} values")
        return


@rule("buffer-in-16-bits", WARNING, remedy="register the buffer in float32")
def sixteen_bit_buffer(evidence: Evidence) -> Iterator[Found]:
    """Autocast casts no buffer up: what is accumulated or looked up there stays in 16 bits."""
    if not any(facts.dtype is torch.float32 for facts in evidence.amp.parameters.values()):
        return
    for name, (dtype, _) in evidence.amp.buffers.items():
        if dtype in LOW and name in evidence.amp.buffers_used and not _is_of_low_module(evidence, name):
            yield Found(
                message=f"buffer {name} is {dtype_name(dtype)} in a float32 model",
                module=name.rpartition(".")[0] or name,
                where=evidence.amp.buffers_used[name],
            )


def _is_of_low_module(evidence: Evidence, buffer: str) -> bool:
    """Whether the nearest module around it that has parameters has none but 16-bit ones: then so should it be."""
    path = buffer
    while "." in path:
        path = path.rpartition(".")[0]
        dtypes = {facts.dtype for name, facts in evidence.amp.parameters.items() if name.startswith(f"{path}.")}
        if dtypes:
            return dtypes <= set(LOW)
    return False


@rule("counter-in-16-bits", WARNING, remedy="count in integers, accumulate in float32 or float64")
def sixteen_bit_counter(evidence: Evidence) -> Iterator[Found]:
    """A float16 count stops at 2048, a bfloat16 one at 256; moving averages stall."""
    for event in evidence.amp.of(StateCarried):
        message = f"{event.op} accumulates from step to step in {dtype_name(event.dtype)}, shape {list(event.shape)}"
        yield at(event, message, op=event.op)


@rule(
    "parameter-without-gradient",
    ERROR,
    remedy="see that no cast copy or no_grad block cuts the parameter off from the loss",
)
def no_gradient(evidence: Evidence) -> Iterator[Found]:
    """Forward reads the parameter, its optimizer steps, float64 has a gradient for it: under AMP it gets none."""
    trace = evidence.amp
    if trace.failure is not None:
        return
    exact = evidence.compared.exact.gradients
    for name, facts in trace.parameters.items():
        never = not facts.stepped and not facts.skipped and not facts.received
        if facts.trained and facts.read_at is not None and never and name in exact:
            message = f"{name} is used in the forward and gets no gradient, as in float64 it does"
            yield Found(message=message, module=name, where=facts.read_at or None)


@rule(
    "gradients-never-used", ERROR, remedy="see to it that iterations end in scaler.step(optimizer) and scaler.update()"
)
def gradients_never_used(evidence: Evidence) -> Iterator[Found]:
    """Backward gives gradients, float64 trains with them: under AMP no step is made, and none is skipped."""
    trace, exact = evidence.amp, evidence.compared.exact.gradients
    waiting = {
        name: facts
        for name, facts in trace.parameters.items()
        if facts.trained and facts.received and not facts.stepped and not facts.skipped and name in exact
    }
    backward = trace.first(Backward)
    if not waiting or trace.failure is not None or backward is None:
        return
    if any(facts.pending is False for facts in waiting.values()) and trace.scaled:
        message = (
            f"gradients are infinite at loss scale {trace.first_scale:g}, the program leaves their steps out by "
            "itself, and the scaler never learns of it: the scale stays"
        )
        remedy = "call scaler.step(optimizer) and scaler.update() for such a step too: the scaler skips it itself"
        yield dataclasses.replace(at(backward, message), remedy=remedy)
        return
    name = next(iter(waiting))
    message = (
        f"{len(waiting)} parameters, {name} among them, have gradients that no step ever uses, as in float64 one does"
    )
    read = trace.first(GradientsRead)
    if read is None:
        yield at(backward, message)
        return
    remedy = "call scaler.unscale_(optimizer) before gradients are compared with a bound"
    yield dataclasses.replace(
        at(read, f"{message}: what is decided here is decided on scaled gradients"), remedy=remedy
    )


@rule("scaler-not-saved", WARNING, remedy="save scaler.state_dict() with the rest, and load it")
def scaler_not_saved(evidence: Evidence) -> Iterator[Found]:
    """Scale and growth tracker start over: the first steps after a resume are skipped, as they were at first."""
    if not evidence.amp.scaled:
        return
    saved = evidence.amp.of(CheckpointSaved)
    with_scaler = {event.step for event in saved if event.scaler}  # maybe in a file of its own
    for event in saved:
        if event.optimizer and event.step not in with_scaler:
            yield Found(
                message="this checkpoint holds an optimizer's state and no scaler's", where=event.where, step=event.step
            )
    if evidence.resumed is not None:
        for before, after in evidence.resumed.scales:
            if before != after:
                yield Found(message=f"the loss scale is {before:g} when saved and {after:g} when resumed", op="load")


@rule(
    "checkpoint-not-restored",
    ERROR,
    remedy="after loading, refresh every float32 copy of the weights from what was loaded",
)
def checkpoint_lost(evidence: Evidence) -> Iterator[Found]:
    """A checkpoint must survive being loaded, and the next step: float32 copies that were not refreshed undo it."""
    resumed = evidence.resumed
    if resumed is None:
        return
    if resumed.error is not None:
        yield Found(
            message=f"saving and loading raises {resumed.error}", remedy="make save and load work on a fresh program"
        )
    elif resumed.lost and resumed.weightless:
        yield Found(
            message=f"what save gives holds no weights: {resumed.lost[0]} differs after loading",
            module=resumed.lost[0],
            remedy="save model.state_dict() with the rest, and load it",
        )
    elif resumed.lost:
        yield Found(message=f"{resumed.lost[0]} differs from what was saved", module=resumed.lost[0])
    elif resumed.overwritten:
        yield Found(
            message=f"the step after loading puts {resumed.overwritten[0]} back to what it was before loading",
            module=resumed.overwritten[0],
        )
