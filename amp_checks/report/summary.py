"""Counts and verdict: what every report format says first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from amp_checks.core import Result, Status

RAN = (Status.PASSED, Status.FAILED, Status.KNOWN_DEFECT)
"""A verdict was reached: anything else measured nothing, or not to the end."""


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


def verdict(results: Sequence[Result]) -> str:
    """The one line that a person reads first."""
    counts = count(results)
    ran = [result for result in results if result.status in RAN]
    if not ran:
        return "NO VERDICT: nothing ran"
    where = sorted({result.backend for result in ran})
    told = ", ".join(f"{name} (emulated)" if name.startswith("emulated-") else name for name in where)
    if counts[Status.FAILED]:
        return f"AMP IS WRONG: {counts[Status.FAILED]} of {len(ran)} checks failed on {told}"
    if counts[Status.ERROR]:
        return f"NO VERDICT: {counts[Status.ERROR]} checks broke (the suite's own failure) on {told}"
    return f"AMP is right: {len(ran)} checks ran on {told}"
