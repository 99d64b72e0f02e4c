"""Autocast regions: where they are, what they reach, and what outlives them."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import at, rule
from amp_checks.audit.runs.plan import Evidence
from amp_checks.audit.watching.trace import Kind, Trace

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@rule("backward-in-autocast", WARNING, remedy="call backward after the with block")
def backward_in_autocast(evidence: Evidence) -> Iterator[Found]:
    """Ops that backward runs are then autocast too: gradients of float32 parts come out in 16 bits."""
    for event in evidence.amp.of(Kind.BACKWARD):
        if event.data["region"]:
            yield at(event, "backward runs inside an autocast region")


@rule("autocast-never-on", WARNING, remedy="run forward and loss inside torch.autocast(device_type, dtype=...)")
def autocast_never_on(evidence: Evidence) -> Iterator[Found]:
    """A scaler alone makes nothing faster, nor does a program that was never put into a region."""
    trace = evidence.amp
    low = any(dtype.itemsize == 2 for op in trace.ops for dtype in op.outputs)
    regions = [event for event in trace.of(Kind.REGION) if event.data["enabled"]]
    disabled_itself = next(trace.of(Kind.DISABLED_REGION), None)  # which a rule of its own says
    if regions or low or disabled_itself or not trace.ops:
        return
    if trace.scaled:
        scale = next(trace.of(Kind.SCALE))
        yield at(scale, "the loss is scaled, but no autocast region is entered and nothing runs in 16 bits")
    elif (backward := next(trace.of(Kind.BACKWARD), None)) is not None:
        yield at(backward, "no autocast region is entered, and nothing runs in 16 bits")


@rule("autocast-without-effect", WARNING, remedy="give torch.autocast the device type that the tensors are on")
def autocast_without_effect(evidence: Evidence) -> Iterator[Found]:
    """A region reaches only the ops of its device type, and is silent about all others."""
    trace = evidence.amp
    for event in trace.of(Kind.DISABLED_REGION):
        yield at(event, f"this region is for {event.data['device']}, which is not there: it has disabled itself")
    regions = [event for event in trace.of(Kind.REGION) if event.data["enabled"] and event.data["ops"]]
    if regions and not any(event.data["low_ops"] for event in regions):
        first = regions[0]
        yield at(first, f"no op in this region for {first.data['device']} ran in {_name(first.data['dtype'])}")


@rule(
    "cached-weights-outdated",
    ERROR,
    remedy="leave every autocast region before weights change, or give it cache_enabled=False",
)
def outdated_weights(evidence: Evidence) -> Iterator[Found]:
    """Casts of weights are kept until the outermost region, even a disabled one, is left, whatever becomes of them."""
    for event in evidence.amp.of(Kind.STALE_WEIGHT):
        written = event.data["written"]
        yield Found(
            message=f"a 16-bit copy of {event.data['parameter']} is used that was made before it changed at {written}",
            where=written,
            module=event.module,
            step=event.step,
        )


@rule("autocast-left-on", ERROR, remedy="enter a region with a with statement, each region object once at a time")
def autocast_left_on(evidence: Evidence) -> Iterator[Found]:
    """One region object that is entered while it is entered already restores its own state on leaving."""
    last = [event for event in evidence.amp.of(Kind.REGION) if event.data["enabled"]]
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
    for event in evidence.amp.of(Kind.REGION):
        function = event.data["function"]
        if not event.data["in_backward"] or function not in forward:
            continue
        now = event.data["dtype"] if event.data["enabled"] else None
        if now not in forward[function]:
            yield at(
                event,
                op=function,
                message=f"{function} recomputes under {_name(now)} what its forward computed under "
                f"{_name(forward[function][0])}",
            )


def _regions_of_forward(trace: Trace) -> dict[str, list[object]]:
    """Of each custom function, the dtypes of the regions that its last forward ran in; None: without autocast.

    ``custom_fwd`` with ``cast_inputs`` leaves autocast before it calls forward: that region is entered by no line of
    forward, but by the one that applies the function, and takes the place of the one around it.
    """
    found: dict[str, list[object]] = {}
    applied: dict[str, str | None] = {}
    for event in trace.of(Kind.FUNCTION, Kind.REGION):
        function = event.data["function"]
        if event.kind is Kind.FUNCTION:
            found[function], applied[function] = [event.data["region"]], event.where
        elif function in found and not event.data["in_backward"]:
            dtype = event.data["dtype"] if event.data["enabled"] else None
            found[function] = [dtype] if event.where == applied[function] else [*found[function], dtype]
    return found


@rule(
    "function-not-decorated", WARNING, remedy='decorate it with torch.amp.custom_fwd(device_type="cuda") and custom_bwd'
)
def function_not_decorated(evidence: Evidence) -> Iterator[Found]:
    """Without the pair, forward is autocast and backward is not: products of one run in 16 bits, of the other not."""
    events = {event.data["function"]: event for event in evidence.amp.of(Kind.FUNCTION)}
    for function, (forward, backward) in evidence.amp.function_products.items():
        event = events.get(function)
        if event is None or event.data["decorated"] or event.data["region"] is None:
            continue
        if forward and backward and forward != backward:
            yield at(
                event,
                op=function,
                message=f"{function} multiplies in {_names(forward)} in forward and in {_names(backward)} in backward",
            )


def _name(dtype: object) -> str:
    return "no autocast" if dtype is None else str(dtype).removeprefix("torch.")


def _names(dtypes: frozenset[object]) -> str:
    return " and ".join(sorted(map(_name, dtypes)))
