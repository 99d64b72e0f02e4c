"""The loss scale, skipped steps, and what must not go on while steps are skipped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from amp_checks.audit.finding import Found, Severity
from amp_checks.monitor.history import History
from amp_checks.monitor.journal import Record
from amp_checks.monitor.rules.registry import rule

ERROR, WARNING = Severity.ERROR, Severity.WARNING

_FALLING, _FALLEN = 8.0, 32.0
"""Times by which the scale is below one at which a step of the window was taken. A healthy scale goes up and down by 2,
and by 4 where it grows often."""
_RECENT = 20
"""Steps of which half are skipped in a training that no longer trains."""


@rule(
    "loss-scale-falls",
    "step",
    ERROR,
    remedy="find what overflows: the first value that is not finite is placed where one was measured",
)
def loss_scale_falls(history: History) -> Iterator[Found]:
    """A scale finds its level in the first steps. When it falls from there for good, gradients or values have grown."""
    step = history.steps[-1]
    if step["taken"] or step["scale"] is None or not history.settled:
        return
    good = max((one["scale"] for one in _taken(history)), default=0.0)
    if good >= _FALLING * step["scale"]:
        severity = ERROR if good >= _FALLEN * step["scale"] else WARNING
        skipped = sum(not one["taken"] for one in history.steps)
        yield Found(
            message=f"the loss scale fell from {good:g} to {step['scale']:g}; {skipped} of the last "
            f"{len(history.steps)} steps were skipped",
            severity=severity,
        )


@rule("loss-scale-at-floor", "step", ERROR, remedy="no loss scale helps here: look at the values in forward")
def loss_scale_at_floor(history: History) -> Iterator[Found]:
    """Below 1 a scale makes gradients smaller than they are, and still they overflow: it is not the scale's doing."""
    step = history.steps[-1]
    if not step["taken"] and step["scale"] is not None and step["scale"] <= 1.0:
        yield Found(message=f"a step is skipped at a loss scale of {step['scale']:g}")


@rule("steps-skipped", "step", ERROR, remedy="find what overflows; until then the training stands still")
def steps_skipped(history: History) -> Iterator[Found]:
    """Half of the steps and more are not taken, long after the scale had found its level."""
    recent = list(history.steps)[-_RECENT:]
    if not history.settled or len(recent) < _RECENT or history.steps[-1]["taken"] or not recent[0]["taken"]:
        recent = [] if history.settled_at is None or recent[0]["step"] <= history.settled_at else recent
    skipped = sum(not one["taken"] for one in recent)
    if len(recent) == _RECENT and skipped * 2 >= _RECENT:
        yield Found(message=f"{skipped} of the last {_RECENT} steps were skipped")


@rule("loss-not-finite", "step", ERROR, remedy="look at this batch, and at what the loss is made of")
def loss_not_finite(history: History) -> Iterator[Found]:
    """Without a scaler the weights are lost with the next step. A scaler skips it: one bad batch is a warning."""
    step = history.steps[-1]
    if step["loss"] is None or math.isfinite(step["loss"]) or not history.settled:
        return
    bad = [one for one in list(history.steps)[-3:] if one["loss"] is not None and not math.isfinite(one["loss"])]
    batch = f"; its batch is {step['batch']}" if step.get("batch") else ""
    severity = WARNING if step["scale"] is not None and len(bad) < 3 else ERROR
    yield Found(message=f"the loss of step {step['step']} is {step['loss']:g}{batch}", severity=severity)


@rule(
    "scheduler-stepped-on-skipped-step",
    "step",
    WARNING,
    remedy="step the scheduler only where scaler.update() did not lower scaler.get_scale()",
)
def scheduler_stepped_on_skipped_step(history: History) -> Iterator[Found]:
    """The schedule runs ahead of the weights. One that advances once an epoch may meet a skipped step by chance."""
    step = history.steps[-1]
    if step["lr"] is None or len(history.steps) < 2 or history.steps[-2]["taken"] or not _after_settling(history, step):
        return
    pairs = [(one, after) for one, after in pairwise(history.steps) if not one["taken"] and one["lr"] is not None]
    pairs = [(one, after) for one, after in pairs if _after_settling(history, one)]
    moved = [one for one, after in pairs if after["lr"] is not None and after["lr"] != one["lr"]]
    if len(moved) >= 2 and len(moved) == len(pairs):
        yield Found(
            message=f"the learning rate moved on after {len(moved)} skipped steps, {moved[0]['step']} the first",
            step=moved[0]["step"],
        )


@rule(
    "average-updated-on-skipped-step", "step", WARNING, remedy="average weights only after a step that was not skipped"
)
def average_updated_on_skipped_step(history: History) -> Iterator[Found]:
    """A skipped step leaves the weights as they were: averaging them again gives them a weight that they have not."""
    step = history.steps[-1]
    if step["taken"] or not step["averaged"] or not _after_settling(history, step):
        return
    history.counts["averaged"] += 1
    if history.counts["averaged"] >= 2:
        yield Found(message=f"averaged weights were updated after {history.counts['averaged']} skipped steps")


@rule("scaler-left-out", "step", ERROR, remedy="step through the scaler: scaler.step(optimizer)")
def scaler_left_out(history: History) -> Iterator[Found]:
    """Gradients of a loss that is scaled are applied as they are, or small ones of one that no longer is are lost."""
    recent = list(history.steps)[-3:]
    if len(recent) == 3 and all(one["scale"] is None and one["unscaled"] for one in recent):
        before = [one for one in history.steps if one["scale"] is not None]
        if len(before) >= 3 or history.counts["scaled"]:
            yield Found(message=f"steps are taken without the scaler since step {recent[0]['step']}")


def _taken(history: History) -> list[Record]:
    return [one for one in history.steps if one["taken"] and one["scale"] is not None]


def _after_settling(history: History, step: Record) -> bool:
    return history.settled_at is not None and step["step"] > history.settled_at
