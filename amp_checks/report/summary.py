"""Counts and measures that several report formats show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from amp_checks.core import Finding, Result, Status

T = TypeVar("T", bound=Any)

BAD = (Status.FAILED, Status.ERROR)
"""What a report shows in full and a gate stops."""

KINDS = ("CUDA", "CPU", "emulated", "other")
"""Where results come from, never mixed: CUDA devices, the CPU's own autocast, emulation, backends of a user's own."""


def kind_of(result: Result) -> str:
    """The one of `KINDS` that the result's backend belongs to."""
    if result.emulated:
        return "emulated"
    return {"cuda": "CUDA", "cpu": "CPU"}.get(result.backend.partition("-")[0], "other")


def share(finding: Finding) -> float:
    """The ratio as a share of its threshold: below 1 passes; infinity where it is NaN, or nothing could pass."""
    if math.isnan(finding.ratio) or finding.threshold <= 0.0:
        return math.inf
    return finding.ratio / finding.threshold


def is_measured(finding: Finding) -> bool:
    """Whether the finding is a size held against a bound, and not a property that holds or does not."""
    return not (finding.threshold == 1.0 and (finding.ratio == 0.0 or math.isinf(finding.ratio)))


def grouped(results: Iterable[Result], key: Callable[[Result], T]) -> dict[T, list[Result]]:
    """The results by what ``key`` says of them, sorted by it."""
    found: dict[T, list[Result]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return dict(sorted(found.items()))


def known_by_reason(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The known defects that showed, by their reason, sorted."""
    known = (result for result in results if result.status is Status.KNOWN_DEFECT)
    return grouped(known, lambda result: result.message.partition(": ")[2])


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Counts per backend and family, planted faults, and backends that were emulated."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for (backend, family), mine in grouped(results, lambda one: (one.backend, one.family)).items():
        table.setdefault(backend, {})[family] = {name: number for name, number in count(mine).items() if number}
    planted = [result for result in results if result.check == "check_planted_fault_is_caught"]
    return {
        "backends": table,
        "emulated": sorted({result.backend for result in results if result.emulated}),
        "planted": len({(result.case, result.backend) for result in planted}),
        "caught": sum(result.status is Status.PASSED for result in planted),
        "findings": sum(len(result.findings) for result in results),
        "counts": count(results),
    }


def count(results: Iterable[Result]) -> dict[str, int]:
    """How many results there are of each status, all statuses named."""
    counts = {str(status): 0 for status in Status}
    for result in results:
        counts[str(result.status)] += 1
    return counts
