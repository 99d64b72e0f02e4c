"""What a program does when gradients overflow and a step is skipped: in the run with an injected overflow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.runs.overflow import InjectedOverflow
from amp_checks.audit.watching.events import Backward, OverflowHidden, ScalerStep, SchedulerStep, WeightsAveraged
from amp_checks.audit.watching.trace import Trace
from amp_checks.core import first_line

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def _traces(evidence: Evidence) -> Iterator[Trace]:
    yield evidence.amp
    if evidence.overflow is not None:
        yield evidence.overflow


@rule(
    "scheduler-stepped-on-skipped-step",
    WARNING,
    remedy="step the scheduler only where scaler.update() did not lower scaler.get_scale()",
)
def scheduler_stepped_on_skipped_step(evidence: Evidence) -> Iterator[Found]:
    """The schedule runs ahead of the weights. Steps are skipped while the scale settles, and whenever it overflows.

    One that advances once in several steps, an epoch say, is not ahead for those of them that were skipped.
    """
    for event in (event for trace in _traces(evidence) for event in trace.of(SchedulerStep)):
        if event.skipped == 1 and not event.real:
            yield at(event, "the scheduler advances although its optimizer's step was skipped")


@rule("average-updated-on-skipped-step", WARNING, remedy="average weights only after a step that was not skipped")
def average_updated_on_skipped_step(evidence: Evidence) -> Iterator[Found]:
    """A skipped step leaves the weights as they were: averaging them again gives them a weight that they have not."""
    for event in (event for trace in _traces(evidence) for event in trace.of(WeightsAveraged)):
        yield at(event, f"{event.op} averages {event.parameter} after a skipped step", op=event.op)


@rule("overflow-applied", ERROR, remedy="step through the scaler, and change no gradient so that an infinity is lost")
def overflow_applied(evidence: Evidence) -> Iterator[Found]:
    """Every gradient of one step is made infinite; weights must not show it."""
    trace = evidence.overflow
    if trace is None or not evidence.amp.finite:
        return
    if trace.optimizers and not trace.took_overflow:
        return  # it diverges by itself
    for name, facts in trace.parameters.items():
        if not facts.finite:
            message = f"an injected gradient overflow reached the weights: {name} is not finite"
            yield Found(message=message, module=name)
            return


@rule(
    "overflow-never-left",
    ERROR,
    remedy="clear gradients in every iteration, also where the step is left out: a sum with an infinity stays one",
)
def overflow_never_left(evidence: Evidence) -> Iterator[Found]:
    """One overflow must cost one step. Where its gradients stay, every later sum with them is infinite or NaN."""
    amp, trace = evidence.amp, evidence.overflow
    if trace is None or trace.failure is not None or trace.steps != amp.steps:
        return
    at_step = InjectedOverflow().at
    stood = [name for name, facts in amp.parameters.items() if facts.stepped == amp.steps >= at_step + 3]
    if not stood or any(trace.parameters[name].stepped > at_step for name in stood if name in trace.parameters):
        return
    later = next((event for event in trace.of(Backward) if event.step == at_step + 1), None)
    if later is not None:
        yield at(
            later, "after an injected gradient overflow no step is taken any more: backward adds to its infinities"
        )


@rule(
    "overflow-hidden",
    ERROR,
    remedy="leave gradients that are not finite as they are: the scaler then skips the step, and lowers the scale",
)
def overflow_hidden(evidence: Evidence) -> Iterator[Found]:
    """A step with gradients that are made up is taken, and the loss scale that made them overflow stays."""
    trace = evidence.overflow
    if trace is None:
        return
    for event in trace.of(OverflowHidden):
        if event.in_backward:
            message = "nothing is left of an injected gradient overflow after backward: the scaler cannot see it"
            yield Found(message=message, where=event.hidden_at, step=event.step)
    # What is frozen by zeros takes no part in a step that the scaler skips for another optimizer's gradients.
    skipped = {event.step for event in trace.skipped_steps}
    seen = [event for event in trace.of(OverflowHidden) if not event.in_backward]
    for event in seen:
        if not (event.zero and event.step in skipped):
            message = (
                "an injected gradient overflow is replaced by finite numbers before the scaler sees it: the step is "
                "taken"
            )
            yield Found(message=message, where=event.hidden_at or event.where, step=event.step)
    if not seen:
        yield from _unanswered(trace)


def _unanswered(trace: Trace) -> Iterator[Found]:
    """The program finds the overflow by itself and leaves the step out, without its scaler, as often as it comes."""
    at_step = InjectedOverflow().at
    overflows = [event for event in trace.of(Backward) if event.step == at_step and event.scaled]
    fell = any(after < before for before, after in itertools.pairwise([trace.first_scale or 1.0, *trace.scales]))
    if not overflows or fell or trace.skipped_steps or trace.failure is not None:
        return
    if any(event.step > at_step for event in trace.of(ScalerStep)):
        yield Found(
            message="the scaler never learns of an injected gradient overflow: the loss scale that made it stays",
            remedy="call scaler.step(optimizer) and scaler.update() for such a step too: the scaler skips it itself",
            where=overflows[-1].where,
            step=at_step,
        )


@rule(
    "program-raises-on-overflow",
    ERROR,
    remedy="let scaler.step skip the step: infinite gradients are no error while the scale settles",
)
def program_raises_on_overflow(evidence: Evidence) -> Iterator[Found]:
    """Every float16 training meets infinite gradients now and then: a program must survive one."""
    failure = evidence.overflow.failure if evidence.overflow is not None else None
    if failure is not None:
        yield Found(
            message=f"when the gradients of a step overflow, the program raises {type(failure.error).__name__}: "
            + first_line(failure.error),
            where=failure.where,
            step=failure.step,
        )
