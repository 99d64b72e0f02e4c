"""Every program of the topics, in the order of reports."""

from __future__ import annotations

from amp_checks.families.ops.regions import (
    availability,
    cache,
    compiled,
    custom,
    decorators,
    entering,
    front_ends,
    functions,
    gradients,
    mixed,
    recomputed,
    state,
    threads,
)
from amp_checks.families.ops.regions.program import RegionCase

CASES: tuple[RegionCase, ...] = tuple(
    case
    for module in (
        *(state, entering, availability, front_ends, decorators, threads, cache, gradients, recomputed),
        *(functions, custom, compiled, mixed),
    )
    for case in vars(module).values()
    if isinstance(case, RegionCase)
)
