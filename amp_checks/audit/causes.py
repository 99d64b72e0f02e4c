"""Which finding follows from which: one fault has many effects, and a remedy for an effect mends nothing.

`LINKS` is the one place to say that a rule's finding explains another's. A link holds where the evidence says so: what
both share (a line, an op, an iteration, parameters), or a run in which the cause alone is undone (`Mend`) and the
effect is gone. What is still there in that run is a fault of its own, however many others there are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from amp_checks.audit import measures
from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.audit.rules import RULES, judge
from amp_checks.audit.runs.plan import Evidence
from amp_checks.audit.runs.undo import Mend
from amp_checks.audit.watching.trace import Kind, Trace

Shared = Callable[[Evidence, Diagnostic, Diagnostic], bool]
Without = Callable[[Mend], Evidence | None]

_AS_LARGE = 8.0
"""Times the loss's own error (both in eps) that of gradients may be, to follow from it: 1.2 to 3.7 on the pairs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """That findings of some rules are effects of what others found.

    Attributes:
        causes, effects: ids of rules.
        shared: what the evidence must say of a finding of each.
        mend: what undoes the cause; its boost is worked out from the headroom. None: ``shared`` decides alone.
    """

    causes: tuple[str, ...]
    effects: tuple[str, ...]
    shared: Shared = lambda evidence, cause, effect: True  # noqa: ARG005 - the signature of the others
    mend: Mend | None = None


def _same_step(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del evidence
    return cause.step == effect.step


def _same_op(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del evidence
    return cause.op is not None and (cause.op, cause.where) == (effect.op, effect.where)


def _same_function(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del evidence
    return cause.op == effect.op


def _is_what_was_raised(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    failure = evidence.amp.failure
    return failure is not None and type(failure.error).__name__ in effect.message and cause.message != effect.message


def _meets_a_parameter(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del cause, effect
    failure = evidence.amp.failure
    return failure is not None and any("float16" in text and ": parameter " in text for text in failure.inputs)


def _all_were_bypassed(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del cause, effect
    rehearsal = evidence.rehearsal
    assert rehearsal is not None
    return {name for name, facts in rehearsal.parameters.items() if not facts.finite} <= rehearsal.bypassed


def _skipped_with_it(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """Every skipped step is one whose loss was not finite, or all were skipped alike from the cause on."""
    del effect
    trace = evidence.amp
    skipped = [event for event in trace.of(Kind.SCALER_STEP) if event.data["skipped"]]
    if cause.rule == "gradient-not-finite":
        steps = sum(1 for _ in trace.of(Kind.SCALER_STEP))
        return len(skipped) == steps and cause.step == skipped[0].step
    bad = {step for step, loss in trace.losses if not math.isfinite(loss)}
    return {event.step for event in skipped} <= bad


def _unguarded(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del cause, effect
    return not evidence.amp.scaled


def _lost_guard(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """The constant became what the op at its line broke on: 0 under a log or a division, infinity in itself."""
    if cause.where is None or cause.where != effect.where:
        return False
    found = evidence.origins.first() if evidence.origins is not None else None
    if found is None or found.where != cause.where:
        return False
    return found.least == 0.0 if " is 0 in " in cause.message else found.op == cause.op


def _lost_where_it_grew(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del effect
    place = evidence.amplified
    return place is not None and (place.by or place.op, place.by_where or place.where) == (cause.op, cause.where)


def _of_the_loss(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """Both are placed on the one op that rounds too early, and the gradients are about as wrong as the loss."""
    loss = measures.loss_ratio(evidence)
    worst = max(measures.ratios(evidence).values(), default=0.0)
    placed = cause.where is not None and cause.where == effect.where and cause.op == effect.op
    return placed and loss is not None and worst < _AS_LARGE * loss


def _of_a_wrong_loss(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """The loss is placed, and another one; each step uses what backward gave, and that is not much worse."""
    losses = measures.first_losses(evidence)
    if cause.where is None or losses is None or not _as_backward_gave_them(evidence, cause, effect):
        return False
    error = abs(losses.amp / losses.exact - 1.0)
    return error > measures.UNPLACED_ERROR and measures.total_error(evidence) < _AS_LARGE * error


def _as_backward_gave_them(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """What is wrong with the gradients came about in forward and backward, where the cause is."""
    del cause, effect
    return all(map(_uses_what_it_was_given, (evidence.amp, evidence.fp32)))


def _uses_what_it_was_given(trace: Trace) -> bool:
    given = trace.given
    return all(name in given and measures.relative(used, given[name]) < 1e-3 for name, used in trace.gradients.items())


def _with_that_scale(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """Against a reference that depends on the loss scale as well, nothing is left of it."""
    del cause
    return not judge(_referred_to_scaled(evidence), rules=[RULES[effect.rule]])


def _referred_to_scaled(evidence: Evidence) -> Evidence:
    """The evidence, with a reference that depends on the loss scale as the program does; what is off it stays so."""
    scaled, exact = evidence.scaled, measures.reference(evidence).gradients
    assert scaled is not None

    def moved(trace: Trace) -> Trace:
        gradients = {
            name: value + trace.gradients[name] - exact[name]
            for name, value in scaled.gradients.items()
            if name in trace.gradients and name in exact
        }
        return dataclasses.replace(trace, gradients=gradients)

    shaken = tuple(map(moved, evidence.shaken))
    return dataclasses.replace(evidence, fp32=moved(evidence.fp32), fp64=scaled, shaken=shaken)


def _same_line(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del evidence
    return cause.where is not None and cause.where == effect.where


def _same_line_as_fault(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    return _same_line(evidence, cause, effect) and cause.severity is not Severity.NOTE


def _by_one_factor(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del cause, effect
    return measures.is_one_factor(evidence)


_GRADIENTS = ("gradients-differ", "gradients-off-scale")
_SKIPS = ("steps-skipped", "parameter-never-updated", "optimizers-out-of-step")
_MEASURED = ("loss-differs", *_GRADIENTS)
_LATER = ("loss-not-finite", "weights-not-finite", "overflow-unseen", "buffer-not-finite", *_SKIPS)
_NOT_FINITE = ("data-not-finite", "loss-not-finite", "gradient-not-finite")

LINKS = (
    Link(
        causes=(
            "loss-not-scaled",
            "loss-scaled-twice",
            "scaled-gradients-modified",
            "scaler-bypassed",
            "gradients-unscaled-mid-accumulation",
            "scaler-updated-mid-accumulation",
        ),
        effects=(*_GRADIENTS, *_LATER),
        mend=Mend(gradients=True),
    ),
    Link(
        causes=("inner-gradient-scaled",),
        effects=(*_MEASURED, *_LATER),
        mend=Mend(inner=True),
    ),
    Link(causes=("inner-gradient-scaled",), effects=("gradients-depend-on-loss-scale",)),
    Link(
        causes=("gradients-depend-on-loss-scale",),
        effects=(*_GRADIENTS, "gradients-underflow"),
        shared=_with_that_scale,
    ),
    Link(
        causes=("gradients-depend-on-loss-scale", "scaled-gradients-modified"),
        effects=("overflow-hidden",),
        shared=_same_line_as_fault,
    ),
    Link(causes=("overflow-hidden",), effects=("scaled-gradients-modified",), shared=_same_line),
    Link(
        causes=("loss-scaling-missing", "gradients-underflow"),
        effects=("gradients-underflow", *_GRADIENTS),
        mend=Mend(boost=math.inf),
    ),
    Link(causes=("gradients-unscaled-twice",), effects=("gradients-unscaled-mid-accumulation",), shared=_same_step),
    Link(causes=("loss-not-scaled",), effects=("loss-not-scaled",), shared=_is_what_was_raised),
    Link(causes=("weights-in-16-bits",), effects=("weights-in-16-bits",), shared=_is_what_was_raised),
    Link(
        causes=("scaler-bypassed", "scaler-updated-mid-accumulation"),
        effects=("scaler-update-without-step",),
        shared=_same_step,
    ),
    Link(causes=("scaler-bypassed",), effects=("overflow-applied",), shared=_all_were_bypassed),
    # What overflows after `unscale_` has looked is not seen.
    Link(causes=("gradients-unscaled-mid-accumulation",), effects=("overflow-applied",)),
    Link(
        causes=("constant-not-representable",),
        effects=("loss-not-finite", "gradient-not-finite"),
        shared=_lost_guard,
    ),
    Link(causes=("constant-not-representable",), effects=("overflow-unseen",), shared=_same_op),
    Link(causes=("constant-not-representable",), effects=("loss-differs",), shared=_lost_where_it_grew),
    Link(causes=("angle-in-16-bits",), effects=("loss-differs", "gradients-differ"), shared=_same_op),
    Link(causes=("angle-in-16-bits",), effects=("gradients-off-scale",), shared=_as_backward_gave_them),
    Link(causes=("loss-differs",), effects=_GRADIENTS, shared=_of_the_loss),
    Link(causes=("loss-differs",), effects=("gradients-off-scale",), shared=_of_a_wrong_loss),
    Link(causes=("gradients-off-scale",), effects=("gradients-differ",), shared=_by_one_factor),
    Link(causes=("loss-differs",), effects=("overflow-unseen",), shared=_same_op),
    Link(causes=_NOT_FINITE, effects=_SKIPS, shared=_skipped_with_it),
    Link(causes=_NOT_FINITE, effects=("weights-not-finite",), shared=_unguarded),
    Link(causes=_NOT_FINITE, effects=("buffer-not-finite",), shared=_same_op),
    Link(causes=("weights-in-16-bits",), effects=("dtypes-mixed",), shared=_meets_a_parameter),
    Link(causes=("recomputation-in-other-dtype",), effects=("function-not-decorated",), shared=_same_function),
)


def explain(found: Sequence[Diagnostic], evidence: Evidence, without: Without) -> list[Diagnostic]:
    """The findings, effects below their causes: as notes that name the rule of the cause and have no remedy.

    A cause is as severe as the worst of its effects. ``without`` gives the evidence of a run in which a fault is
    undone.
    """
    found = [*found, *_hidden(found, evidence, without)]
    parents: dict[int, int] = {}
    for link in LINKS:
        for place in range(len(found)):
            if place in parents or found[place].rule not in link.effects:
                continue
            for other, cause in enumerate(found):
                if cause.rule not in link.causes or place in _chain(other, parents):
                    continue
                if not link.shared(evidence, cause, found[place]):
                    continue
                effect = None if link.mend is None else _left(found[place], link.mend, without)
                if effect is not None:
                    found[place] = effect
                    break
                parents[place] = other
                found[place] = found[place] if link.mend is None else _unplaced(found[place], evidence)
                break
    for place in list(parents):
        if any(_accepted_for_less(found[one], found[place]) for one in _chain(place, parents)):
            del parents[place]
    return _in_order(found, parents)


def _hidden(found: Sequence[Diagnostic], evidence: Evidence, without: Without) -> Iterator[Diagnostic]:
    """What is measured only once a fault is undone: one too small and one too large may look right together."""
    rules = {one.rule for one in found}
    if "gradients-depend-on-loss-scale" in rules:
        yield from judge(_referred_to_scaled(evidence), rules=[RULES[rule] for rule in _GRADIENTS if rule not in rules])
    for link in LINKS:
        if link.mend is None or link.mend.boost != 1.0 or not rules & set(link.causes):
            continue
        mended = without(link.mend)
        missing = [RULES[rule] for rule in _MEASURED if rule not in rules]
        yield from judge(mended, rules=missing) if mended is not None else ()


def _chain(place: int, parents: dict[int, int]) -> list[int]:
    chain = [place]
    while chain[-1] in parents:
        chain.append(parents[chain[-1]])
    return chain


def _accepted_for_less(cause: Diagnostic, effect: Diagnostic) -> bool:
    """A team that lives with a warning has not said that it lives with an error."""
    return cause.ignored is not None and cause.severity.rank > effect.severity.rank


def _left(effect: Diagnostic, mend: Mend, without: Without) -> Diagnostic | None:
    """What of a finding is still there when a fault is undone; None where it is gone."""
    mended = without(mend)
    if mended is None:
        return effect
    left = judge(mended, rules=[RULES[effect.rule]])
    if not left:
        return None
    return left[0] if effect.rule in _MEASURED else effect


def _unplaced(effect: Diagnostic, evidence: Evidence) -> Diagnostic:
    """The finding without an op that no longer stands out once its cause is undone."""
    again = judge(dataclasses.replace(evidence, amplified=None), rules=[RULES[effect.rule]])
    return again[0] if again and effect.rule in _MEASURED else effect


def _in_order(found: list[Diagnostic], parents: dict[int, int]) -> list[Diagnostic]:
    worst = [one.severity for one in found]
    for place, one in enumerate(found):
        root = _chain(place, parents)[-1]
        worst[root] = min(worst[root], one.severity, key=lambda severity: severity.rank)
    ordered: list[Diagnostic] = []

    def add(place: int) -> None:
        ordered.append(_shown(found, place, parents, worst[place]))
        for effect, cause in parents.items():
            if cause == place:
                add(effect)

    for place in sorted((n for n in range(len(found)) if n not in parents), key=lambda n: worst[n].rank):
        add(place)
    return ordered


def _shown(found: list[Diagnostic], place: int, parents: dict[int, int], worst: Severity) -> Diagnostic:
    if place not in parents:
        return dataclasses.replace(found[place], severity=worst)
    cause = found[parents[place]].rule
    rule = found[place].rule if found[place].rule != cause else "program-raises"
    return dataclasses.replace(found[place], rule=rule, severity=Severity.NOTE, remedy="", follows_from=cause)
