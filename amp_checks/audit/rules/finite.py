"""Values that leave the range of their dtype: infinities, NaN, constants that do not exist."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.probes.sources import Source
from amp_checks.audit.rules.registry import rule
from amp_checks.audit.watching.events import ConstantLost, OptimizerStep, ScalerStep
from amp_checks.torch_api.dtypes import dtype_name

ERROR, WARNING = Severity.ERROR, Severity.WARNING

_HINTS = {
    "log": "log of exactly 0: keep the argument in float32, or use a loss that takes logits (with_logits, log_softmax)",
    "log1p": "log1p of exactly -1: keep the argument in float32, or bound it by 1 - torch.finfo(dtype).eps",
    "div": "division by exactly 0: an eps must exist in the dtype (torch.finfo(dtype).tiny is the least normal one)",
    "reciprocal": "division by exactly 0: an eps must exist in the dtype",
    "rsqrt": "rsqrt of exactly 0: an eps must exist in the dtype",
    "sqrt": "the gradient of sqrt at 0 is infinite: an eps must exist in the dtype",
    "pow": "compute powers in float32",
    "exp": "subtract the maximum first, or compute in float32",
    "sum": "sum in float32: x.float().sum(), or sum(dtype=torch.float32)",
    "mean": "average in float32",
    "softmax": "a row masked whole has no softmax: mask with torch.finfo(dtype).min once, or leave such rows out",
    "add": "two masks of torch.finfo(dtype).min add up to -inf: combine boolean masks first, and add one",
    "mm": "the product leaves float16's range: run this layer in float32, scale its input, or train in bfloat16",
}
_ALIASES = {
    "addmm": "mm", "bmm": "mm", "baddbmm": "mm", "linear": "mm", "convolution": "mm", "dot": "sum", "mv": "mm",
    "_softmax": "softmax", "_log_softmax": "softmax", "div_": "div", "add_": "add", "log_": "log", "addmv": "mm",
    "norm": "sum", "linalg_vector_norm": "sum", "cumsum": "sum", "var": "sum", "square": "pow",
}  # fmt: skip
_MAKING = {
    f"aten::{name}"
    for name in (
        "sum mean mm addmm bmm baddbmm convolution linear dot mv addmv exp pow mul square prod cumsum div norm "
        "linalg_vector_norm var _foreach_norm reciprocal rsqrt log"
    ).split()
}


def hint(op: str) -> str:
    """What to do about an op that leaves its dtype's range."""
    name = op.removeprefix("aten::").partition(".")[0]
    return _HINTS.get(_ALIASES.get(name, name), "compute this in float32 (torch.autocast(device_type, enabled=False))")


def describe(source: Source) -> str:
    """What happened there, in words."""
    dtypes = "/".join(dict.fromkeys(source.inputs)) or "constants"
    if source.deliberate:
        what = f"{source.op} brings in an infinite constant"
    else:
        size = "" if math.isnan(source.magnitude) else f" (magnitudes {source.least:.3g} to {source.magnitude:.3g})"
        if source.of_infinite and "softmax" in source.op:
            what = f"{source.op} makes {source.value} of a row of {dtypes} that is masked whole"
        else:
            kind = f"{dtypes} that holds infinities" if source.of_infinite else f"finite {dtypes}"
            what = f"{source.op} makes {source.value} out of {kind}{size}"
    if source.nan_by is not None:
        what += f", of which {source.nan_by[0]} makes NaN at {source.nan_by[1]}"
    return what


def _found(source: Source, message: str, *, step: int | None = None) -> Found:
    return Found(
        message=message, where=source.where, module=source.module, op=source.op, step=step, remedy=hint(source.op)
    )


@rule("data-not-finite", ERROR, remedy="leave these elements out, or repair the data: no precision trains on them")
def data_not_finite(evidence: Evidence) -> Iterator[Found]:
    """What comes in as NaN or infinity is no overflow, though it looks like one in the loss."""
    source = evidence.sources.first() if evidence.sources is not None else None
    if evidence.sources is not None and source is not None and source.given is not None:
        yield Found(
            message=f"the data holds what is not finite, AMP did not make it: {source.given}, first used here",
            where=source.where,
            module=source.module,
            op=source.op,
            step=evidence.sources.step,
        )


@rule("loss-not-finite", ERROR, remedy="see the op")
def non_finite_loss(evidence: Evidence) -> Iterator[Found]:
    """A loss that is not finite trains nothing. It is placed on the op that left its dtype's range first."""
    step = next((step for step, loss in evidence.amp.losses if not math.isfinite(loss)), None)
    if step is None or (evidence.sources is not None and evidence.sources.step < step):
        return
    source = evidence.sources.loss if evidence.sources is not None else None
    if source is not None and source.given is not None:
        return  # `data-not-finite` reports it
    if source is None:
        yield Found(message="the loss is not finite", step=step)
    elif (few := _few_and_skipped(evidence)) is not None:
        message = f"the loss is not finite in {few} iterations, whose steps were skipped: {describe(source)}"
        yield dataclasses.replace(_found(source, message, step=step), severity=WARNING)
    elif not _same_in_float32(evidence, step):
        yield _found(source, f"the loss is not finite: {describe(source)}", step=step)
    else:
        yield _found(source, f"the loss is not finite, in float32 neither: {describe(source)}", step=step)


FEW = 0.2
"""Share of iterations up to which skipped ones cost little: a batch that overflows now and then."""


def _few_and_skipped(evidence: Evidence) -> str | None:
    """How many iterations have a loss that is not finite, where they are few and a scaler skipped their steps."""
    trace = evidence.amp
    bad = {step for step, loss in trace.losses if not math.isfinite(loss)}
    kept = {event.step for event in trace.of(ScalerStep) if not event.skipped}
    kept |= {event.step for event in trace.of(OptimizerStep)}
    skipped = {event.step for event in trace.skipped_steps}
    if not bad <= skipped - kept or len(bad) > FEW * trace.steps or not trace.finite:
        return None
    return f"{len(bad)} of {trace.steps}"


def _same_in_float32(evidence: Evidence, step: int) -> bool:
    return any(at == step and not math.isfinite(loss) for at, loss in evidence.fp32.losses)


@rule("gradient-not-finite", ERROR, remedy="see the op")
def non_finite_gradient(evidence: Evidence) -> Iterator[Found]:
    """The loss is finite, a gradient is not. Too high a loss scale may do that for a few steps, and heals."""
    found = evidence.sources
    if found is None or found.loss is not None or found.gradient is None or found.gradient.given is not None:
        return
    source = found.gradient
    heals = source.value == "inf" and not (_divides(source) and source.least == 0.0)
    settled = evidence.runs.settled
    if evidence.amp.scaled and heals and not (settled is not None and settled.never):
        return
    yield _found(
        source,
        f"the gradient of {found.parameter} is not finite though the loss is: in backward of this line, "
        f"{describe(source)}",
        step=found.step,
    )


def _divides(source: Source) -> bool:
    return source.op.removeprefix("aten::").partition(".")[0] in ("div", "reciprocal", "rsqrt", "div_")


@rule(
    "buffer-not-finite",
    ERROR,
    remedy="find the overflow; the scaler guards parameters only, so a buffer stays poisoned for ever",
)
def buffer_poisoned(evidence: Evidence) -> Iterator[Found]:
    """Buffers are written in forward: a step that is skipped for an overflow has written them already."""
    exact = evidence.fp32.buffers
    for name, (_, finite) in evidence.amp.buffers.items():
        if not finite and exact.get(name, (None, True))[1]:  # else it is so by design: a mask, a running minimum
            source = evidence.sources.buffers.get(name) if evidence.sources is not None else None
            why = f": {describe(source)}" if source is not None else ""
            yield Found(
                message=f"buffer {name} is not finite{why}",
                where=source.where if source is not None else None,
                module=source.module if source is not None else name.rpartition(".")[0],
                op=source.op if source is not None else None,
            )


@rule(
    "weights-not-finite",
    ERROR,
    remedy="find the first non-finite gradient, and step through a GradScaler, which would skip it",
)
def weights_not_finite(evidence: Evidence) -> Iterator[Found]:
    """What training leaves behind is of no use."""
    bad = [name for name, facts in evidence.amp.parameters.items() if not facts.finite]
    if bad and evidence.fp32.finite:
        yield Found(message=f"{len(bad)} parameters are not finite after training, among them {bad[0]}", module=bad[0])


@rule("overflow-unseen", WARNING, remedy="see the op")
def overflow_unseen(evidence: Evidence) -> Iterator[Found]:
    """A value left its dtype's range and did not reach the loss: a metric, a statistic, a masked branch."""
    if any(not math.isfinite(loss) for _, loss in evidence.amp.losses):
        return
    for op in evidence.amp.ops:
        if op.backward:
            continue
        if math.isinf(op.high) or math.isinf(op.low):
            if op.name.partition(".")[0] in _MAKING:
                failure = evidence.amp.failure
                asserted = failure is not None and failure.op is None and failure.step == op.step
                yield Found(
                    message=f"{op.name} gives {op.high if math.isinf(op.high) else op.low} in "
                    + dtype_name(op.outputs[0])
                    + (", and the program raises in that iteration" if asserted else ""),
                    severity=Severity.ERROR if asserted else None,
                    where=op.where,
                    module=op.module,
                    op=op.name,
                    step=op.step,
                    remedy=hint(op.name),
                )
            return


@rule("constant-not-representable", WARNING, remedy="see the constant")
def constant_does_not_exist(evidence: Evidence) -> Iterator[Found]:
    """An eps that is 0, a bound of 1 - 1e-6 that is 1, a mask of -1e9 that is -inf: in 16 bits no guard."""
    for event in evidence.amp.of(ConstantLost):
        becomes, dtype = event.becomes, dtype_name(event.dtype)
        if becomes == 0.0:
            remedy = f"use an eps that {dtype} has (6e-8 and up in float16), or compute this in float32"
        elif becomes == 1.0:
            remedy = "bound by 1 - torch.finfo(x.dtype).eps, or compute this in float32"
        else:
            remedy = "mask with torch.finfo(x.dtype).min, or with -inf where no row is masked whole"
        yield Found(
            message=f"{event.constant:g} is {becomes:g} in {dtype}, the dtype of this {event.op}",
            where=event.where,
            module=event.module,
            op=event.op,
            step=event.step,
            remedy=remedy,
        )
