"""Which finding follows from which: one fault has many effects, and a remedy for an effect repairs nothing.

`LINKS` is the one place to say that a rule's finding explains another's, by one of two relations. *Undone*: the effect
is gone in a run in which the cause alone is undone, which proves it; what is still there in that run is a fault of its
own, however many others there are. *Co-located*: both share a line, an op, an iteration or a function, or the evidence
says that one is what the other was made of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from amp_checks.audit import measures
from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.audit.measures import Compared
from amp_checks.audit.rules import RULES, judge
from amp_checks.audit.rules.errors import KNOWN
from amp_checks.audit.runs.undo import Undo
from amp_checks.audit.watching.compact import Gradients
from amp_checks.audit.watching.events import ScalerRaised, ScalerStep
from amp_checks.audit.watching.trace import Trace

Relation = Callable[[Evidence, Diagnostic, Diagnostic], bool]
"""Whether the evidence says that a cause and an effect belong together."""

_AS_LARGE = 8.0
"""Times the loss's own error (both in eps) that of gradients may be, to follow from it: 1.2 to 3.7 on the pairs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """That findings of some rules are effects of what others found.

    Attributes:
        causes, effects: ids of rules.
        undo: what undoes the cause: where the effect is gone then, it follows. None: ``shared`` decides.
        shared: what the evidence must say of a finding of each.
    """

    causes: tuple[str, ...]
    effects: tuple[str, ...]
    undo: Undo | None = None
    shared: Relation = lambda evidence, cause, effect: True  # noqa: ARG005 - the signature of the others


def _same(*fields: str) -> Relation:
    """Both have the same values there, and the first is known."""

    def shared(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
        del evidence
        return getattr(cause, fields[0]) is not None and all(getattr(cause, f) == getattr(effect, f) for f in fields)

    return shared


_SAME_OP, _SAME_LINE = _same("op", "where"), _same("where")


def _same_line_as_fault(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    return _SAME_LINE(evidence, cause, effect) and cause.severity is not Severity.NOTE


def _is_what_was_raised(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    failure = evidence.amp.failure
    return failure is not None and type(failure.error).__name__ in effect.message and cause.message != effect.message


def _met_a_parameter(evidence: Evidence, *_: Diagnostic) -> bool:
    failure = evidence.amp.failure
    return failure is not None and any("float16" in text and ": parameter " in text for text in failure.inputs)


def _all_were_bypassed(evidence: Evidence, *_: Diagnostic) -> bool:
    trace = evidence.overflow
    assert trace is not None
    return {name for name, facts in trace.parameters.items() if not facts.finite} <= trace.bypassed


def _skipped_with_it(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """Every skipped step is one whose loss was not finite, or all were skipped alike from the cause on."""
    del effect
    skipped = [event.step for event in evidence.amp.skipped_steps]
    if cause.rule == "gradient-not-finite":
        return len(skipped) == len(evidence.amp.of(ScalerStep)) and cause.step == skipped[0]
    return set(skipped) <= {step for step, loss in evidence.amp.losses if not math.isfinite(loss)}


def _unguarded(evidence: Evidence, *_: Diagnostic) -> bool:
    return not evidence.amp.scaled


def _lost_guard(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """The constant became what the op at its line broke on: 0 under a log or a division, infinity in itself."""
    source = evidence.sources.first() if evidence.sources is not None else None
    if source is None or source.where != cause.where or not _SAME_LINE(evidence, cause, effect):
        return False
    return source.least == 0.0 if " is 0 in " in cause.message else source.op == cause.op


def _lost_where_it_grew(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del effect
    place = evidence.amplified
    return place is not None and (place.by or place.op, place.by_where or place.where) == (cause.op, cause.where)


def _of_the_loss(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """Both are placed on the one op that rounds too early, and the gradients are about as wrong as the loss."""
    loss = measures.loss_ratio(evidence.compared)
    worst = max(measures.ratios(evidence.compared).values(), default=0.0)
    placed = _same("where", "op")(evidence, cause, effect)
    return placed and loss is not None and worst < _AS_LARGE * loss


def _of_a_wrong_loss(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """The loss is placed, and another one; each step uses what backward gave, and that is not much worse."""
    losses = measures.first_losses(evidence.compared)
    if cause.where is None or losses is None or not _as_backward_gave_them(evidence, cause, effect):
        return False
    error = abs(losses.amp / losses.exact - 1.0)
    return error > measures.UNPLACED_ERROR and measures.total_error(evidence.compared) < _AS_LARGE * error


def _as_backward_gave_them(evidence: Evidence, *_: Diagnostic) -> bool:
    """What is wrong with the gradients came about in forward and backward, where the cause is."""
    return all(
        name in trace.raw_gradients and measures.relative(used, trace.raw_gradients[name]) < 1e-3
        for trace in (evidence.amp, evidence.fp32)
        for name, used in trace.gradients.items()
    )


def _by_one_factor(evidence: Evidence, *_: Diagnostic) -> bool:
    return measures.is_one_factor(evidence.compared)


def _gone_at_that_scale(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """Against a reference that depends on the loss scale as well, nothing is left of it."""
    del cause
    return not judge(_referred_to_scaled(evidence), rules=[RULES[effect.rule]])


def _referred_to_scaled(evidence: Evidence) -> Evidence:
    """The evidence, with a reference that depends on the loss scale as the program does; what is off it stays so."""
    scaled, runs = evidence.scaled, evidence.compared
    assert scaled is not None
    exact = runs.exact.gradients

    def moved(trace: Trace) -> Trace:
        gradients = {
            name: value + trace.gradients[name] - exact[name]
            for name, value in scaled.gradients.items()
            if name in trace.gradients and name in exact
        }
        return dataclasses.replace(trace, gradients=Gradients(gradients))

    perturbed = tuple(map(moved, runs.perturbed))
    compared = Compared(amp=runs.amp, fp32=moved(runs.fp32), exact=scaled, perturbed=perturbed)
    return evidence.but(compared=compared, amplified=evidence.amplified)


def _not_before(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del evidence
    return cause.step is None or effect.step is None or effect.step >= cause.step


def _holds_what_was_carried(evidence: Evidence, *_: Diagnostic) -> bool:
    """Steps are skipped for the infinity that was carried on from the first of them."""
    skipped = evidence.amp.skipped_steps
    firsts = {event.optimizer: event for event in reversed(skipped)}
    return bool(skipped) and all(event.carried for event in skipped if event is not firsts[event.optimizer])


def _gone_outside(evidence: Evidence, *_: Diagnostic) -> bool:
    """No step is skipped where backward runs outside of the region."""
    undone = evidence.without(Undo(backward=True))
    return undone is not None and bool(evidence.amp.skipped_steps) and not undone.amp.skipped_steps


def _was_caught(evidence: Evidence, *_: Diagnostic) -> bool:
    return evidence.amp.failure is None and evidence.amp.first(ScalerRaised) is not None


def _was_made_of_the_buffer(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """The value that is not finite is made in the buffer's module, in float32 too: what the buffer lost is lost."""
    at_root = cause.module in evidence.amp.buffers and effect.module == evidence.amp.root
    return "in float32 neither" in effect.message and (at_root or effect.module == cause.module)


def _came_before(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    """The program itself raises, no op of it, in the iteration in which a value left its range."""
    failure = evidence.amp.failure
    return failure is not None and failure.op is None and cause.step == effect.step


def _was_converted(evidence: Evidence, cause: Diagnostic, effect: Diagnostic) -> bool:
    del evidence, effect
    return "the loop converts" in cause.message


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
            "scalers-mixed",
            "parameter-in-two-optimizers",
        ),
        effects=(*_GRADIENTS, *_LATER),
        undo=Undo(gradients=True),
    ),
    Link(causes=("inner-gradient-scaled",), effects=(*_MEASURED, *_LATER), undo=Undo(inner=True)),
    Link(causes=("inner-gradient-scaled",), effects=("gradients-depend-on-loss-scale",)),
    Link(
        causes=("gradients-depend-on-loss-scale",),
        effects=(*_GRADIENTS, "gradients-underflow"),
        shared=_gone_at_that_scale,
    ),
    Link(
        causes=("gradients-depend-on-loss-scale", "scaled-gradients-modified"),
        effects=("overflow-hidden",),
        shared=_same_line_as_fault,
    ),
    Link(causes=("overflow-hidden",), effects=("scaled-gradients-modified",), shared=_SAME_LINE),
    Link(
        causes=("loss-scaling-missing", "gradients-underflow"),
        effects=("gradients-underflow", *_GRADIENTS),
        undo=Undo(boost=math.inf),
    ),
    # What the closure makes of the gradients is made in the step, where nothing can be undone.
    Link(
        causes=("closure-with-scaler",),
        effects=(
            *(*_GRADIENTS, *_LATER, "overflow-applied", "overflow-hidden"),
            "gradients-unscaled-mid-accumulation",
        ),
    ),
    Link(causes=("gradients-unscaled-twice",), effects=("gradients-unscaled-mid-accumulation",), shared=_same("step")),
    Link(causes=("loss-not-scaled",), effects=("loss-not-scaled",), shared=_is_what_was_raised),
    Link(causes=("weights-in-16-bits",), effects=("weights-in-16-bits",), shared=_is_what_was_raised),
    Link(
        causes=("scaler-bypassed", "scaler-updated-mid-accumulation"),
        effects=("scaler-update-without-step",),
        shared=_same("step"),
    ),
    Link(causes=("scaler-bypassed",), effects=("overflow-applied",), shared=_all_were_bypassed),
    # What overflows after `unscale_` has looked is not seen.
    Link(causes=("gradients-unscaled-mid-accumulation",), effects=("overflow-applied", "overflow-hidden")),
    Link(
        causes=("gradients-cleared-before-step",),
        effects=("overflow-hidden", "optimizer-without-gradients", *_MEASURED),
    ),
    Link(causes=("gradients-never-used",), effects=("scaled-gradients-read",), shared=_SAME_LINE),
    Link(
        causes=tuple(row.rule for row in KNOWN),
        effects=("scaler-update-without-step", "gradients-never-used", "parameter-without-gradient", "overflow-hidden"),
        shared=_was_caught,
    ),
    Link(causes=("weights-in-16-bits",), effects=(*_MEASURED, *_LATER, "loss-scaling-missing"), shared=_was_converted),
    Link(causes=("zero-grad-missing", "overflow-hidden", "overflow-applied"), effects=("overflow-never-left",)),
    Link(causes=("zero-grad-missing",), effects=_SKIPS, shared=_holds_what_was_carried),
    Link(
        causes=("autocast-left-on",),
        effects=("cached-weights-outdated", "backward-in-autocast"),
        shared=_not_before,
    ),
    Link(causes=("cached-weights-outdated",), effects=(*_MEASURED, *_LATER), undo=Undo(cache=True)),
    Link(causes=("backward-in-autocast",), effects=("gradient-not-finite", *_SKIPS), shared=_gone_outside),
    Link(
        causes=("buffer-in-16-bits",),
        effects=("loss-not-finite", "gradient-not-finite"),
        shared=_was_made_of_the_buffer,
    ),
    Link(causes=("overflow-unseen",), effects=_MEASURED, shared=_SAME_OP),
    Link(causes=("overflow-unseen",), effects=("program-raises",), shared=_came_before),
    Link(causes=("integers-in-16-bits", "sum-stagnates"), effects=_MEASURED),
    Link(
        causes=("constant-not-representable",), effects=("loss-not-finite", "gradient-not-finite"), shared=_lost_guard
    ),
    Link(causes=("constant-not-representable",), effects=("overflow-unseen",), shared=_SAME_OP),
    Link(causes=("constant-not-representable",), effects=("loss-differs",), shared=_lost_where_it_grew),
    Link(causes=("angle-in-16-bits",), effects=("loss-differs", "gradients-differ"), shared=_SAME_OP),
    Link(causes=("angle-in-16-bits",), effects=("gradients-off-scale",), shared=_as_backward_gave_them),
    Link(causes=("loss-differs",), effects=_GRADIENTS, shared=_of_the_loss),
    Link(causes=("loss-differs",), effects=("gradients-off-scale",), shared=_of_a_wrong_loss),
    Link(causes=("gradients-off-scale",), effects=("gradients-differ",), shared=_by_one_factor),
    Link(causes=("loss-differs",), effects=("overflow-unseen",), shared=_SAME_OP),
    Link(causes=_NOT_FINITE, effects=_SKIPS, shared=_skipped_with_it),
    Link(causes=_NOT_FINITE, effects=("weights-not-finite",), shared=_unguarded),
    Link(causes=_NOT_FINITE, effects=("buffer-not-finite",), shared=_SAME_OP),
    Link(causes=("weights-in-16-bits",), effects=("dtypes-mixed",), shared=_met_a_parameter),
    Link(causes=("recomputation-in-other-dtype",), effects=("function-not-decorated",), shared=_same("op")),
)


def explain(found: Sequence[Diagnostic], evidence: Evidence) -> list[Diagnostic]:
    """The findings, effects below their causes: as notes that name the rule of the cause and have no remedy.

    A cause is as severe as the worst of its effects.
    """
    found = [*found, *_hidden(found, evidence)]
    parents: dict[int, int] = {}
    for link in LINKS:
        for place, effect in enumerate(found):
            if place in parents or effect.rule not in link.effects:
                continue
            for other, cause in enumerate(found):
                if cause.rule not in link.causes or place in _chain(other, parents):
                    continue
                if not link.shared(evidence, cause, effect):
                    continue
                left = _left(effect, link.undo, evidence) if link.undo is not None else None
                if left is None:
                    parents[place] = other
                    left = effect if link.undo is None else _unplaced(effect, evidence)
                found[place] = left
                break
    for place in list(parents):
        if any(_accepted_for_less(found[one], found[place]) for one in _chain(place, parents)):
            del parents[place]
    return _in_order(found, parents)


def _hidden(found: Sequence[Diagnostic], evidence: Evidence) -> Iterator[Diagnostic]:
    """What is measured only once a fault is undone: one too small and one too large may look right together."""
    rules = {one.rule for one in found}
    if "gradients-depend-on-loss-scale" in rules:
        yield from judge(_referred_to_scaled(evidence), rules=[RULES[rule] for rule in _GRADIENTS if rule not in rules])
    for link in LINKS:
        if link.undo is None or link.undo.boost != 1.0 or not rules & set(link.causes):
            continue
        undone = evidence.without(link.undo)
        missing = [RULES[rule] for rule in _MEASURED if rule not in rules]
        yield from judge(undone, rules=missing) if undone is not None else ()


def _chain(place: int, parents: dict[int, int]) -> list[int]:
    chain = [place]
    while chain[-1] in parents:
        chain.append(parents[chain[-1]])
    return chain


def _accepted_for_less(cause: Diagnostic, effect: Diagnostic) -> bool:
    """A team that lives with a warning has not said that it lives with an error."""
    return cause.ignored is not None and cause.severity.rank > effect.severity.rank


def _left(effect: Diagnostic, undo: Undo, evidence: Evidence) -> Diagnostic | None:
    """What of a finding is still there when a fault is undone; None where it is gone."""
    undone = evidence.without(undo)
    return effect if undone is None else _again(effect, undone)


def _unplaced(effect: Diagnostic, evidence: Evidence) -> Diagnostic:
    """The finding without an op that no longer stands out once its cause is undone."""
    return _again(effect, evidence.but(amplified=None)) or effect


def _again(one: Diagnostic, evidence: Evidence) -> Diagnostic | None:
    """The finding as other evidence gives it, if that measures what it is about; None where it is not there."""
    found = judge(evidence, rules=[RULES[one.rule]])
    return (found[0] if one.rule in _MEASURED else one) if found else None


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
