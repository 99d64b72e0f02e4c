"""A step that raises: what the message means, and which tensors met."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.watching.events import FunctionApplied, LossScaled, ScalerRaised, ScalerStep
from amp_checks.audit.watching.trace import Trace
from amp_checks.core import first_line


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An exception that AMP programs meet: its rule, a pattern of its text, what it means, what to change.

    ``when``: what else must be true of the run, where one text has several causes.
    """

    rule: str
    pattern: str
    meaning: str
    remedy: str
    when: Callable[[Trace], bool] = lambda _: True

    def is_this(self, text: str, trace: Trace) -> bool:
        """Whether an exception of that text is the one meant."""
        return re.search(self.pattern, text) is not None and self.when(trace)


def _scaled_since_the_step(trace: Trace) -> bool:
    """A loss was scaled after the last step: the next iteration has begun."""
    last = next((event for event in reversed(trace.events) if isinstance(event, LossScaled | ScalerStep)), None)
    return isinstance(last, LossScaled)


KNOWN = (
    Known(
        rule="scaler-update-missing",
        pattern=r"unscale_\(\) is being called after step",
        meaning="scaler.unscale_ is called in the next iteration without scaler.update()",
        remedy="call scaler.update() at the end of each iteration",
        when=_scaled_since_the_step,
    ),
    Known(
        rule="gradients-unscaled-twice",
        pattern=r"unscale_\(\) (has already been called|is being called after step)",
        meaning="gradients are unscaled a second time before scaler.update()",
        remedy="call scaler.unscale_(optimizer) once per step, after the last micro-batch",
    ),
    Known(
        rule="scaler-update-missing",
        pattern=r"step\(\) has already been called since the last update",
        meaning="scaler.step is called again without scaler.update()",
        remedy="call scaler.update() at the end of each iteration",
    ),
    Known(
        rule="optimizer-without-gradients",
        pattern="No inf checks were recorded for this optimizer",
        meaning="none of this optimizer's parameters has a gradient",
        remedy="call scaler.step only for optimizers whose parameters took part in this backward",
    ),
    Known(
        rule="scaler-update-without-step",
        pattern="No inf checks were recorded prior to update",
        meaning="scaler.update() without a scaler.step() or unscale_() before it",
        remedy="call scaler.update() only in iterations that call scaler.step(optimizer)",
    ),
    Known(
        rule="loss-not-scaled",
        pattern="_scale is None",
        meaning="the scaler is asked to unscale although it has scaled no loss",
        remedy="call scaler.scale(loss).backward()",
    ),
    Known(
        rule="weights-in-16-bits",
        pattern="Attempting to unscale FP16 gradients",
        meaning="parameters, and so their gradients, are float16",
        remedy="keep parameters in float32 (no model.half()), and let autocast cast them",
    ),
    Known(
        rule="no-optimizer-given",
        pattern="object has no attribute 'param_groups'",
        meaning="the scaler takes an optimizer, and was given something else: a method, or a list",
        remedy="give scaler.step and scaler.unscale_ the optimizer itself; for a step in parts call scaler.unscale_, "
        "then take the parts where its gradients are finite, then scaler.update()",
    ),
    Known(
        rule="closure-with-scaler",
        pattern="Closure use is not currently supported",
        meaning="scaler.step takes no closure",
        remedy="use an optimizer without closure, or train it without scaler, in bfloat16",
    ),
    Known(
        rule="constant-not-representable",
        pattern="cannot be converted to type .*Half without overflow",
        meaning="a constant lies outside float16's range",
        remedy="mask with torch.finfo(x.dtype).min",
    ),
    Known(
        rule="op-banned",
        pattern="are unsafe to autocast",
        meaning="this loss on probabilities is banned inside autocast",
        remedy="use binary_cross_entropy_with_logits, on logits",
    ),
    Known(
        rule="dtypes-mixed",
        pattern=r"expected scalar type|must have the same (dtype|scalar type)|should be the same|dtypes? (to )?match"
        r"|expected m1 and m2 to have the same dtype|Expected self\.dtype to be equal|same dtype|mat1 and mat2",
        meaning="16-bit and float32 tensors meet in an op that takes one dtype",
        remedy="cast one of them where it is made, or give a custom op an autocast rule (register_autocast)",
    ),
)
"""Messages of torch, most telling first: the one place to add another."""


@rule("program-raises", Severity.ERROR, remedy="the program runs in float32: look for what AMP changes at this line")
def raises(evidence: Evidence) -> Iterator[Found]:
    """The program raises under AMP."""
    failure = evidence.amp.failure
    if failure is None:
        yield from _caught(evidence)
        return
    text = str(failure.error)
    known = next((row for row in KNOWN if row.is_this(text, evidence.amp)), None)
    message = f"{type(failure.error).__name__}: {first_line(failure.error)}"
    if known is not None:
        message = f"{known.meaning} ({message})"
    if failure.inputs:
        message += f"; {failure.op} was given {'; '.join(failure.inputs)}"
    if known is not None and known.rule == "dtypes-mixed" and _is_undecorated(evidence.amp, failure.function):
        known = dataclasses.replace(known, rule="function-not-decorated", remedy=DECORATE)
    yield Found(
        message=message,
        where=failure.where,
        module=failure.module,
        op=failure.op,
        step=failure.step,
        rule=known.rule if known is not None else None,
        remedy=known.remedy if known is not None else None,
    )


DECORATE = "decorate its forward with torch.amp.custom_fwd, and its backward with torch.amp.custom_bwd"


def _is_undecorated(trace: Trace, function: str | None) -> bool:
    """Whether that custom function was applied in a region, without the decorators that it needs there."""
    return any(one.function == function and one.region and not one.decorated for one in trace.of(FunctionApplied))


def _caught(evidence: Evidence) -> Iterator[Found]:
    """What a scaler raised and the program has caught: it goes on without what the scaler was to do."""
    for event in evidence.amp.of(ScalerRaised):
        known = next((row for row in KNOWN if row.is_this(event.text, evidence.amp)), None)
        what = f"{known.meaning} ({event.text})" if known is not None else event.text
        found = at(event, f"{what}; the program catches that, and goes on without what the scaler was to do")
        if known is not None:
            found = dataclasses.replace(found, rule=known.rule, remedy=known.remedy)
        yield found
