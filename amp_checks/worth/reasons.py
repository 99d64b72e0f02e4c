"""Why the expected gain of a step is what it is: causes with what they cost, their place, and what to change."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from amp_checks.worth.count import Count
from amp_checks.worth.devices import Device
from amp_checks.worth.roofline import Cause, Share, shares, together, total

LEAST = 0.10
"""Share of the iteration's time that a fault of the program costs at least; below it, it is no reason."""
DOMINATES = 0.50
"""The same of launches and of data loading, which every program has some of."""
SHOWN = 0.01
"""What costs less is no reason, whoever could change it."""
MOST = 3

_LEASTS = {Cause.LAUNCHES: DOMINATES, Cause.LOADING: DOMINATES}
FAULTS = (
    Cause.LOADING,
    Cause.UNREACHED,
    Cause.FLOAT64,
    Cause.ISLAND,
    Cause.BACK_AND_FORTH,
    Cause.SHAPES,
    Cause.LAUNCHES,
    Cause.DTYPE,
)
"""What the program or its choice of device could change; other causes are in the nature of mixed precision."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason.

    Attributes:
        cause: see `Cause`.
        fault: whether the program could change it.
        share: of the iteration's time on the device, or of the measured time where the cause is data loading.
        where, module: the place that costs most of it.
        text: what it is, with figures.
        remedy: what to change; "" where nothing is to be.
    """

    cause: str
    fault: bool
    share: float
    where: str | None
    module: str | None
    text: str
    remedy: str


def reasons(count: Count, device: Device, low: str) -> tuple[Reason, ...]:
    """At most `MOST`: what the program could change first, then what it could not; each with the largest first."""
    whole = total(count, device) or math.inf
    found = [_loading(count)] if count.loading > DOMINATES * count.seconds > 0 else []
    for cause, some in together(shares(count, device, low)).items():
        share = sum(one.seconds for one in some) / whole
        if cause in FAULTS and share >= _LEASTS.get(cause, LEAST):
            found.append(_reason(cause, some, share, low, device))
        elif share >= SHOWN and (cause not in FAULTS or cause is Cause.LAUNCHES):
            found.append(_reason(cause, some, share, low, device, fault=False))
    found.sort(key=lambda one: (not one.fault, -one.share))
    return tuple(found[:MOST])


def _loading(count: Count) -> Reason:
    share = count.loading / count.seconds
    return Reason(
        cause=Cause.LOADING,
        fault=True,
        share=share,
        where=count.loads_at,
        module=None,
        text=f"the program waits for its DataLoader for {share:.0%} of the iteration, which AMP does not shorten",
        remedy="load ahead: num_workers, pin_memory, less work for each item",
    )


def _reason(
    cause: Cause, some: list[Share], share: float, low: str, device: Device, *, fault: bool | None = None
) -> Reason:
    places: Counter[tuple[str | None, str | None]] = Counter()
    for one in some:
        module, where = one.op.island or (one.op.module, one.op.where)
        if where is not None:
            places[where, module] += one.seconds  # type: ignore[assignment]
    (where, module) = max(places, key=lambda place: places[place]) if places else (None, None)
    products = sum(one.calls for one in some if one.op.flops)
    casts = sum(one.calls for one in some if one.op.cast)
    ops = sum(one.calls for one in some)
    odd = sorted({one.op.odd for one in some if one.op.odd is not None})
    what, remedy = _WORDS[cause]
    text = what.format(
        share=f"{share:.0%}", products=products, casts=casts, ops=ops, low=low, device=device.name,
        odd=", ".join(map(str, odd[:4])), launch=f"{device.launch * 1e6:g}",
    )  # fmt: skip
    return Reason(
        cause=cause,
        fault=cause in FAULTS if fault is None else fault,
        share=share,
        where=where,
        module=module,
        text=text,
        remedy=remedy,
    )


_WORDS = {
    Cause.UNREACHED: (
        "{products} products run in float32 outside any autocast region; {low} would save {share} of the step",
        "run the forward pass and the loss inside torch.autocast",
    ),
    Cause.FLOAT64: (
        "{ops} ops compute in float64; {share} of the step goes into that",
        "keep NumPy's and Python's float64 out of the step: cast once, to float32, where the data is made",
    ),
    Cause.ISLAND: (
        "the program itself computes {ops} ops in float32, {products} of them products: {share} of the step, to {low}",
        "leave the cast or the disabled region out, unless accuracy needs it",
    ),
    Cause.BACK_AND_FORTH: (
        "{casts} casts go to float32 and straight back, with no op between them: {share} of the step",
        "leave both casts out: autocast casts where it needs to",
    ),
    Cause.SHAPES: (
        "leading dimensions of products are no multiples of 8 ({odd}): {share} of the step",
        "pad features, channels or the vocabulary to multiples of 8",
    ),
    Cause.LAUNCHES: (
        "{share} of the step is launching kernels that are done before {launch} us: more speed in them saves nothing",
        "larger batches, or fewer and larger ops: torch.compile, CUDA graphs, a fused or foreach optimizer",
    ),
    Cause.DTYPE: ("{device} has no matrix units for {low}: products run at the rate of float32", "use float16"),
    Cause.RULE: ("{ops} ops run in float32 by autocast's rules or because their inputs are: {share} of the step", ""),
    Cause.CASTS: ("{casts} casts that autocast makes: {share} of the step", ""),
    Cause.OPTIMIZER: ("the optimizer reads and writes float32 weights and state: {share} of the step", ""),
    Cause.MEMORY: ("{products} products in 16 bits are bound by memory, not by FLOPs: {share} of the step", ""),
}
