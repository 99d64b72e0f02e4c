"""Every program of the topics, in the order of reports."""

from __future__ import annotations

from amp_checks.families.ops.regions import cache, compiled, decorators, functions, gradients, mixed, state, threads
from amp_checks.families.ops.regions.program import RegionCase

CASES: tuple[RegionCase, ...] = tuple(
    case
    for module in (state, decorators, threads, cache, gradients, functions, compiled, mixed)
    for case in vars(module).values()
    if isinstance(case, RegionCase)
)
