"""Values of sampled steps: how large, how much of them is lost, in which dtype, and how that changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from amp_checks.audit.finding import Found, Severity
from amp_checks.monitor.float16 import LARGEST
from amp_checks.monitor.history import History
from amp_checks.monitor.rules.registry import rule

ERROR, WARNING = Severity.ERROR, Severity.WARNING

_LOW = ("float16", "bfloat16")
_TREND = 6
"""Samples a trend is taken of."""
_NEAR = 5.0
"""Bits below 65504 from which on a trend is an alarm: activations of trained networks seldom pass 2000."""
_LASTING = 3
"""Samples in which something must show that one batch may show by chance."""


@rule(
    "headroom-shrinks",
    "sample",
    WARNING,
    remedy="bound these activations (normalise, clip, weight decay), run this module in float32, or train in bfloat16",
)
def headroom_shrinks(history: History) -> Iterator[Found]:
    """Activations that grow steadily leave float16's range at a step that their trend predicts."""
    samples = list(history.samples)[-_TREND:]
    if len(samples) < _TREND:
        return
    for name, row in samples[-1]["modules"].items():
        rows = [one["modules"].get(name, {}) for one in samples]
        if row.get("dtype") != "float16" or any(not _is_size(one.get("max")) for one in rows):
            continue
        bits = [math.log2(LARGEST / one["max"]) for one in rows]
        falls = sum(after < before for before, after in pairwise(bits))
        if bits[-1] > _NEAR or bits[0] - bits[-1] < 1.0 or falls < _TREND - 2:
            continue
        steps = samples[-1]["step"] - samples[0]["step"]
        per_step = (bits[0] - bits[-1]) / steps
        left = bits[-1] / per_step
        if left > 20 * steps:
            continue
        yield Found(
            message=f"the largest activation is {row['max']:g}, {bits[-1]:.1f} bits below 65504, and was "
            f"{rows[0]['max']:g} at step {samples[0]['step']}: by its trend it overflows at about step "
            f"{samples[-1]['step'] + math.ceil(left)}",
            module=name,
            severity=ERROR if bits[-1] < 1.0 else WARNING,
        )


@rule(
    "value-not-finite",
    "nonfinite",
    ERROR,
    remedy="run this module in float32, bound what goes in, or train in bfloat16",
)
def value_not_finite(history: History) -> Iterator[Found]:
    """The first value of a step that is not finite. A scaler heals one in backward, by a lower scale."""
    now = history.nonfinite[-1]
    scaled = bool(history.steps) and history.steps[-1]["scale"] is not None
    if not history.settled:
        return
    near = [one for one in history.nonfinite if one["what"] == now["what"] and now["step"] - one["step"] < 10]
    if now["what"] == "gradient" and scaled and len(near) < _LASTING:
        return
    batch = f"; the batch is {now['batch']}" if now.get("batch") else ""
    what = "an input" if now["what"] == "input" else f"the {now['what']}"
    yield Found(
        message=f"{what} of {now['module']} is {now['value']:g} in {now['dtype']}{batch}",
        module=now["module"],
        op=now["op"],
        where=now["where"],
        severity=WARNING if scaled and len(near) < 2 else ERROR,
    )


@rule(
    "gradient-underflow-grows",
    "sample",
    WARNING,
    remedy="raise the loss scale (growth_factor, growth_interval), or train in bfloat16",
)
def gradient_underflow_grows(history: History) -> Iterator[Found]:
    """What is smaller than float16's smallest number under the loss scale is zero: this layer no longer learns."""
    if not _low_share(history.samples[-1]) or len(history.samples) < _LASTING:
        return
    for name, rows in _lasting(history, "gradients"):
        usual = [one["gradients"][name]["lost"] for one in history.first if name in one["gradients"]]
        lost = min(row["lost"] for row in rows)
        if usual and lost >= 0.5 and lost >= max(usual) + 0.4 and rows[-1]["max"] > 0.0:
            yield Found(
                message=f"{lost:.0%} of the gradient is below 6e-8 under the loss scale, and was {max(usual):.0%}",
                module=name,
            )


@rule("gradient-zero", "sample", ERROR, remedy="see what cut it off: a saturated layer, a detach, a mask, underflow")
def gradient_zero(history: History) -> Iterator[Found]:
    """A whole parameter whose gradient was not zero at first, and has been since."""
    for name, rows in _lasting(history, "gradients"):
        was = any(one["gradients"].get(name, {}).get("max", 0.0) > 0.0 for one in (*history.first, *history.samples))
        if was and all(row["max"] == 0.0 for row in rows):
            since = list(history.samples)[-_LASTING]["step"]
            yield Found(message=f"the gradient has been zero since step {_since(history, name, since)}", module=name)


@rule("gradient-gone", "sample", WARNING, remedy="if it was not frozen on purpose, look at what no longer reaches it")
def gradient_gone(history: History) -> Iterator[Found]:
    """A parameter that had a gradient in every first sample, and has had none in the last ones."""
    samples = list(history.samples)[-_LASTING:]
    if len(history.samples) < 2 * _LASTING or len(history.first) < _LASTING:
        return
    for name in history.first[0]["gradients"]:
        had = all(name in one["gradients"] for one in history.first)
        if had and not any(name in one["gradients"] for one in samples) and any(one["gradients"] for one in samples):
            yield Found(message=f"there has been no gradient since step {samples[0]['step']}", module=name)


@rule("gradient-not-finite", "sample", ERROR, remedy="place it: its module's first value that is not finite")
def gradient_not_finite(history: History) -> Iterator[Found]:
    """One parameter's gradient is infinite or NaN in every sample: its steps are all skipped, or its weights lost."""
    for name, rows in _lasting(history, "gradients"):
        if history.settled and all(not math.isfinite(row["max"]) for row in rows):
            yield Found(message=f"the gradient is {rows[-1]['max']:g} in the last {_LASTING} samples", module=name)


@rule("autocast-stopped", "sample", ERROR, remedy="enter the region in every iteration; see what now stands outside it")
def autocast_stopped(history: History) -> Iterator[Found]:
    """Modules that ran in 16 bits run in float32: slower, or, where a scaler goes on, with no need of it."""
    samples = list(history.samples)[-2:]
    if len(history.first) < 2 or samples[0]["step"] <= history.first[1]["step"]:
        return
    low = [name for name in history.first[0]["modules"] if all(_dtype(one, name) in _LOW for one in history.first[:2])]
    lost = [name for name in low if all(_dtype(one, name) in ("float32", "float64") for one in samples)]
    if lost:
        whole = len(lost) == len(low)
        what = "no module runs" if whole else f"{len(lost)} of {len(low)} modules no longer run"
        yield Found(
            message=f"{what} in 16 bits since step {samples[0]['step']}; before, {len(low)} did",
            module=None if whole else lost[0],
            severity=ERROR if whole else WARNING,
        )


@rule("weights-converted", "sample", ERROR, remedy="keep the weights in float32, and let autocast cast them")
def weights_converted(history: History) -> Iterator[Found]:
    """Parameters that change dtype while they train: updates smaller than 16 bits can hold are lost from then on."""
    if not history.first:
        return
    first, now = history.first[0]["weights"], history.samples[-1]["weights"]
    changed = [name for name, row in now.items() if name in first and first[name]["dtype"] != row["dtype"]]
    if changed:
        name = changed[0]
        yield Found(
            message=f"{len(changed)} of {len(now)} parameters changed dtype, {name} from {first[name]['dtype']} to "
            f"{now[name]['dtype']}",
        )


@rule("weights-not-finite", "sample", ERROR, remedy="go back to a checkpoint from before this step")
def weights_not_finite(history: History) -> Iterator[Found]:
    """A step was taken with a gradient that was not finite, or one that the weights could not hold."""
    bad = [name for name, row in history.samples[-1]["weights"].items() if not math.isfinite(row["norm"])]
    if bad:
        yield Found(message=f"{len(bad)} parameters are not finite after the step, {bad[0]} the first", module=bad[0])


def _is_size(number: Any) -> bool:
    return isinstance(number, float) and math.isfinite(number) and number > 0.0


def _dtype(sample: dict[str, Any], module: str) -> str | None:
    dtype: str | None = sample["modules"].get(module, {}).get("dtype")
    return dtype


def _low_share(sample: dict[str, Any]) -> float:
    return float(sum(sample["flops"].get(name, 0.0) for name in _LOW))


def _lasting(history: History, what: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of the last samples, of names that all of them have."""
    samples = list(history.samples)[-_LASTING:]
    if len(samples) == _LASTING:
        for name in samples[-1][what]:
            rows = [one[what][name] for one in samples if name in one[what]]
            if len(rows) == _LASTING:
                yield name, rows


def _since(history: History, name: str, step: int) -> int:
    """The first of the samples, without a gap, in which a gradient was zero."""
    for one in reversed(history.samples):
        row = one["gradients"].get(name)
        if row is None or row["max"] != 0.0:
            break
        step = min(step, one["step"])
    return step
