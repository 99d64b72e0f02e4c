"""Results for a terminal: a table per backend and family, planted faults, known defects, the verdict last."""

from __future__ import annotations

from typing import Any

from amp_checks.core import Status
from amp_checks.core.limits import EMULATION
from amp_checks.report import summary as summaries
from amp_checks.report.document import Document

_COLUMNS = {
    Status.PASSED: "    passed",
    Status.FAILED: "    failed",
    Status.KNOWN_DEFECT: "     known",
    Status.ERROR: "    errors",
    Status.NOT_EMULATED: "  not emulated",
    Status.UNAVAILABLE: "   no device",
}
"""Status -> the heading of its column, as wide as the column."""


def lines(document: Document) -> list[str]:
    """The whole summary, one string a line."""
    summary = summaries.summarise(document.results)
    written = [*_table(summary), ""]
    if known := summaries.known_by_reason(document.results):
        written.append("known defects (expected failures; each reproduced here):")
        written += [f"  {reason} [{len(same)} items]" for reason, same in known.items()]
        written.append("")
    if summary["emulated"]:
        written.append(f"emulated backends: {', '.join(summary['emulated'])}; of their results:")
        written += [f"  - {limit}" for limit in EMULATION]
        written.append("")
    planted = f"{summary['planted']} faults planted, {summary['caught']} caught, here, on {_devices(summary)}"
    written.append(planted if summary["planted"] else "none of the sample of planted faults is in this selection")
    written.append(document.verdict.line)
    return written


def _table(summary: dict[str, Any]) -> list[str]:
    head = f"{'backend':<24}{'family':<13}" + "".join(_COLUMNS.values())
    rows = [head, "-" * len(head)]
    for backend, families in summary["backends"].items():
        for family, counts in families.items():
            cells = "".join(f"{counts.get(status, 0) or '.':>{len(head)}}" for status, head in _COLUMNS.items())
            rows.append(f"{backend:<24}{family:<13}{cells}")
    return rows


def _devices(summary: dict[str, Any]) -> str:
    kinds = {"emulated" if name.startswith("emulated-") else name.partition("-")[0] for name in summary["backends"]}
    return ", ".join(sorted(kinds)) or "no device"
