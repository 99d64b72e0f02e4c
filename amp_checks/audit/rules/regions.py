"""Autocast regions: where they are, what they reach, and what outlives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.watching.events import (
    AutocastSwitchedOn,
    Backward,
    Event,
    FunctionApplied,
    LossScaled,
    RegionDisabledItself,
    RegionEntered,
    StaleWeightUsed,
    StepInAutocast,
)
from amp_checks.audit.watching.trace import Trace
from amp_checks.torch_api.dtypes import LOW, dtype_name

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@rule("backward-in-autocast", WARNING, remedy="call backward after the with block")
def backward_in_autocast(evidence: Evidence) -> Iterator[Found]:
    """Ops that backward runs are then autocast too: gradients of float32 parts come out in 16 bits."""
    settled = evidence.runs.settled
    nothing_trains = settled is not None and settled.never and torch.float16 in evidence.amp.low_dtypes()
    for event in evidence.amp.of(Backward):
        if event.in_region:
            found = at(event, "backward runs inside an autocast region")
            yield dataclasses.replace(found, severity=ERROR) if nothing_trains else found


@rule("step-in-autocast", WARNING, remedy="call scaler.step(optimizer) after the with block")
def step_in_autocast(evidence: Evidence) -> Iterator[Found]:
    """What the optimizer multiplies is cast then: its update is computed in 16 bits."""
    for event in evidence.amp.of(StepInAutocast):
        message = f"the optimizer steps inside a region, which casts what it computes to {dtype_name(event.dtype)}"
        yield at(event, message)


@rule("autocast-never-on", WARNING, remedy="run forward and loss inside torch.autocast(device_type, dtype=...)")
def autocast_never_on(evidence: Evidence) -> Iterator[Found]:
    """A scaler alone makes nothing faster, nor does a program that was never put into a region."""
    trace = evidence.amp
    low = any(dtype.itemsize == 2 for op in trace.ops for dtype in op.outputs)
    regions = any(event.enabled for event in trace.of(RegionEntered))
    if regions or low or trace.first(RegionDisabledItself) is not None or not trace.ops:
        return  # a region that disabled itself has another rule
    if (scale := trace.first(LossScaled)) is not None:
        yield at(scale, "the loss is scaled, but no autocast region is entered and nothing runs in 16 bits")
    elif any(not event.in_backward for event in trace.of(RegionEntered)):
        first = next(event for event in trace.of(RegionEntered) if not event.in_backward)
        message = "each autocast region is entered with enabled=False, and nothing runs in 16 bits"
        yield dataclasses.replace(at(first, message), severity=Severity.NOTE, remedy="none, where that is meant")
    elif (backward := trace.first(Backward)) is not None:
        yield at(backward, "no autocast region is entered, and nothing runs in 16 bits")


@rule("autocast-without-effect", WARNING, remedy="give torch.autocast the device type that the tensors are on")
def autocast_without_effect(evidence: Evidence) -> Iterator[Found]:
    """A region reaches only the ops of its device type, and is silent about all others."""
    trace = evidence.amp
    for event in trace.of(RegionDisabledItself):
        yield at(event, f"this region is for {event.device}, which is not there: it has disabled itself")
    ops = [op for op in trace.ops if op.region is not None]
    if ops and not any(op.outputs[0] in LOW for op in ops):
        inside = {op.region for op in ops}
        first = next(event for event in trace.of(RegionEntered) if event in inside)
        yield at(first, f"no op in this region for {first.device} ran in {dtype_name(first.dtype)}")


@rule(
    "cached-weights-outdated",
    ERROR,
    remedy="leave every autocast region before weights change, or give it cache_enabled=False",
)
def outdated_weights(evidence: Evidence) -> Iterator[Found]:
    """Casts of weights are kept until the outermost region, even a disabled one, is left, whatever becomes of them."""
    for event in evidence.amp.of(StaleWeightUsed):
        message = f"a 16-bit copy of {event.parameter} is used that was made before it changed at {event.written}"
        yield Found(message=message, where=event.written, module=event.module, step=event.step)


@rule("autocast-left-on", ERROR, remedy="enter a region with a with statement, each region object once at a time")
def autocast_left_on(evidence: Evidence) -> Iterator[Found]:
    """One region object that is entered while it is entered already restores its own state on leaving."""
    last: list[Event] = [event for event in evidence.amp.of(RegionEntered) if event.enabled]
    last = last or list(evidence.amp.of(AutocastSwitchedOn))
    for device in evidence.amp.left_on:
        if last and evidence.amp.failure is None:
            yield at(last[0], f"autocast is still on for {device} after the last iteration")


@rule(
    "recomputation-in-other-dtype",
    ERROR,
    remedy="enter the region of backward with the dtype, enabled and cache_enabled of forward",
)
def recomputed_in_other_dtype(evidence: Evidence) -> Iterator[Found]:
    """What is recomputed must be what was computed: else the gradient is that of another function."""
    forward = _regions_of_forward(evidence.amp)
    for event in evidence.amp.of(RegionEntered):
        if not event.in_backward or event.function not in forward:
            continue
        now, then = event.dtype if event.enabled else None, forward[event.function]
        if now not in then:
            message = f"{event.function} recomputes under {_name(now)} what its forward computed under {_name(then[0])}"
            yield at(event, message, op=event.function)


def _regions_of_forward(trace: Trace) -> dict[str | None, list[torch.dtype | None]]:
    """Of each custom function, the dtypes of the regions that its last forward ran in; None: without autocast.

    ``custom_fwd`` with ``cast_inputs`` leaves autocast before it calls forward: that region is entered by no line of
    forward, but by the one that applies the function, and takes the place of the one around it.
    """
    found: dict[str | None, list[torch.dtype | None]] = {}
    applied: dict[str | None, str | None] = {}
    for event in trace.events:
        if isinstance(event, FunctionApplied):
            found[event.function], applied[event.function] = [event.region], event.where
        elif isinstance(event, RegionEntered) and event.function in found and not event.in_backward:
            dtype, function = event.dtype if event.enabled else None, event.function
            found[function] = [dtype] if event.where == applied[function] else [*found[function], dtype]
    return found


@rule(
    "function-not-decorated", WARNING, remedy='decorate it with torch.amp.custom_fwd(device_type="cuda") and custom_bwd'
)
def function_not_decorated(evidence: Evidence) -> Iterator[Found]:
    """Without the pair, forward is autocast and backward is not: products of one run in 16 bits, of the other not."""
    events = {event.function: event for event in evidence.amp.of(FunctionApplied)}
    for function, (forward, backward) in evidence.amp.function_products.items():
        event = events.get(function)
        if event is None or event.decorated or event.region is None:
            continue
        if forward and backward and forward != backward:
            message = f"{function} multiplies in {_names(forward)} in forward and in {_names(backward)} in backward"
            yield at(event, message, op=function)


def _name(dtype: torch.dtype | None) -> str:
    return "no autocast" if dtype is None else dtype_name(dtype)


def _names(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(map(dtype_name, dtypes)))
