"""Counts and verdict: what every report format says first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from amp_checks.core import Finding, Result, Status

RAN = (Status.PASSED, Status.FAILED, Status.KNOWN_DEFECT)
"""A verdict was reached: anything else measured nothing, or not to the end."""

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


def verdict(results: Sequence[Result], *, complete: bool = True, errors: Sequence[str] = ()) -> str:
    """The one line that a person reads first.

    Args:
        results: of one run, or of several merged.
        complete: whether the run came to its end; one that did not may be wrong, but is never right.
        errors: conditions of the run as a whole that are not met; the same goes for them.
    """
    counts = count(results)
    ran = [result for result in results if result.status in RAN]
    if not ran and (broken := counts[Status.ERROR]):
        return f"NO VERDICT: {broken} checks broke (the suite's own failure), and none ran to its end"
    if not ran:
        return "NO VERDICT: nothing ran"
    where = sorted({result.backend for result in ran})
    told = ", ".join(f"{name} (emulated)" if name.startswith("emulated-") else name for name in where)
    if counts[Status.FAILED]:
        return f"AMP IS WRONG: {counts[Status.FAILED]} of {len(ran)} checks failed on {told}"
    if counts[Status.ERROR]:
        return f"NO VERDICT: {counts[Status.ERROR]} checks broke (the suite's own failure) on {told}"
    if not complete:
        return f"NO VERDICT: the run did not finish; the {len(ran)} checks that did are right on {told}"
    if errors:
        return f"NO VERDICT: {errors[0]}; {len(ran)} checks ran on {told}"
    return f"AMP is right: {len(ran)} checks ran on {told}"


def exit_status(results: Iterable[Result], *, complete: bool = True, errors: Sequence[str] = ()) -> int:
    """What goes with `verdict` as a process ends: 0 right, 1 wrong, 2 not finished, 3 broken, 4 conditions not met.

    Args:
        results: of one run, or of several merged.
        complete: whether the run came to its end.
        errors: conditions of the run as a whole that are not met.
    """
    counts = count(results)
    if counts[Status.FAILED]:
        return 1
    if counts[Status.ERROR]:
        return 3
    if not complete:
        return 2
    return 4 if errors or not any(counts[status] for status in RAN) else 0
