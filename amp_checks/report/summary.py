"""Counts and measures that several report formats show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from amp_checks.core import Finding, Result, Status

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


def known_by_reason(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The known defects that showed, by their reason, sorted."""
    found: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: one.id):
        if result.status is Status.KNOWN_DEFECT:
            found.setdefault(result.message.partition(": ")[2], []).append(result)
    return dict(sorted(found.items()))


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Counts per backend and family, planted faults, and backends that were emulated."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for result in sorted(results, key=lambda one: (one.backend, one.family)):
        row = table.setdefault(result.backend, {}).setdefault(result.family, {})
        row[str(result.status)] = row.get(str(result.status), 0) + 1
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
