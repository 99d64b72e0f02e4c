"""How long an iteration takes on a named device by a roofline, op by op, and where that time goes.

The time of an op is the longest of three: its FLOPs at the peak of its dtype, its bytes at the bandwidth, one launch.
What an op costs is its time less what it would take ideally: in 16 bits, well shaped, without a launch; nothing at all
where it is a cast. The step's expected gain is the time of the FP32 run over that of the AMP run.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator

from amp_checks.worth.count import Count, Op
from amp_checks.worth.devices import Device


class Cause(enum.StrEnum):
    """Why time is not gained; those that `FAULTS` names are the program's own."""

    UNREACHED = "autocast-not-reached"
    ISLAND = "float32-island"
    BACK_AND_FORTH = "casts-back-and-forth"
    FLOAT64 = "float64"
    SHAPES = "shapes"
    LAUNCHES = "launch-bound"
    LOADING = "data-loading"
    DTYPE = "dtype-not-native"
    RULE = "float32-by-rule"
    CASTS = "casts-of-autocast"
    OPTIMIZER = "optimizer"
    MEMORY = "memory-bound"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one cause costs at one place, in seconds of the iteration on the device."""

    cause: Cause
    seconds: float
    op: Op
    calls: int


def seconds(op: Op, device: Device, *, tf32: bool = False) -> float:
    """The time of one call."""
    return max(_work(op, device, tf32=tf32), device.launch)


def _work(op: Op, device: Device, *, tf32: bool) -> float:
    return max(op.flops / _rate(op, device, tf32=tf32), op.bytes / device.bandwidth)


def _rate(op: Op, device: Device, *, tf32: bool) -> float:
    peak = device.peak(op.dtype or "float32", tf32=tf32)
    return peak * device.misaligned if op.low and op.odd is not None and peak > device.peaks["float32"] else peak


def total(count: Count, device: Device) -> float:
    """Seconds of the iteration, all ops one after the other."""
    return sum(seconds(op, device, tf32=count.tf32) * calls for op, calls in count.ops)


def intensity(op: Op) -> float:
    """FLOPs for each byte."""
    return op.flops / op.bytes if op.bytes else 0.0


def bound(op: Op, device: Device, *, tf32: bool = False) -> str:
    """Which of the three limits it: ``compute``, ``memory`` or ``launch``."""
    if _work(op, device, tf32=tf32) <= device.launch:
        return "launch"
    return "compute" if op.flops / _rate(op, device, tf32=tf32) > op.bytes / device.bandwidth else "memory"


def shares(count: Count, device: Device, low: str) -> Iterator[Share]:
    """What the causes cost, op by op; ``low``: the dtype that the program autocasts to.

    In a program that enters no region the products of the model are what autocast does not reach.
    """
    for op, calls in count.ops:
        work = _work(op, device, tf32=count.tf32)
        whole = max(work, device.launch)
        if whole > work:
            yield Share(cause=Cause.LAUNCHES, seconds=(whole - work) * calls, op=op, calls=calls)
        cause = _cause(op, device, low)
        ideal = min(work, max(_ideal(op, device, low), op.bytes / device.bandwidth if cause is Cause.SHAPES else 0.0))
        if cause is not None and work > ideal:
            yield Share(cause=cause, seconds=(work - ideal) * calls, op=op, calls=calls)


def _ideal(op: Op, device: Device, low: str) -> float:
    if op.cast:
        return 0.0
    if op.phase == "optimizer":
        return 0.0
    fewer = op.bytes - op.float32_bytes // 2
    peak = max(device.peak(low), device.peak("float32"), device.peaks["float16"])
    return op.flops / peak if op.low else max(op.flops / peak, fewer / device.bandwidth)


def _cause(op: Op, device: Device, low: str) -> Cause | None:
    if op.phase == "optimizer":
        return Cause.OPTIMIZER
    if op.dtype == "float64" or (op.cast and op.output == "float64"):
        return Cause.FLOAT64
    if op.island is not None:
        return Cause.BACK_AND_FORTH if op.returns else Cause.ISLAND
    if op.cast:
        return Cause.CASTS
    if op.low:
        return _cause_in_16_bits(op, device, low)
    if op.flops:
        if op.region == "none":
            return Cause.UNREACHED
        if op.region == "disabled" or op.custom:
            return Cause.ISLAND
    if op.region == "none" and op.phase == "backward":
        return None  # the engine's own: sums of gradients
    return Cause.RULE if op.region == "enabled" else Cause.ISLAND if op.region == "disabled" else None


def _cause_in_16_bits(op: Op, device: Device, low: str) -> Cause | None:
    if not op.flops:
        return None
    if device.peak(low) <= device.peaks["float32"]:
        return Cause.DTYPE
    if op.flops / _rate(op, device, tf32=False) < op.bytes / device.bandwidth:
        return Cause.MEMORY
    return Cause.SHAPES if op.odd is not None else None


def ridge(device: Device, dtype: str) -> float:
    """FLOPs for each byte from which on a product is bound by compute."""
    return device.peak(dtype) / device.bandwidth


def together(found: Iterable[Share]) -> dict[Cause, list[Share]]:
    """By cause."""
    by: dict[Cause, list[Share]] = {}
    for one in found:
        by.setdefault(one.cause, []).append(one)
    return by
