"""Results for a terminal: a table per backend and family, planted faults, known defects, the verdict last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amp_checks.core import Result, Status
from amp_checks.report import summary as summaries

_COLUMNS = (
    ("passed", Status.PASSED),
    ("failed", Status.FAILED),
    ("known", Status.KNOWN_DEFECT),
    ("errors", Status.ERROR),
    ("lacking", Status.NOT_EMULATED),
    ("no device", Status.UNAVAILABLE),
)


def lines(
    results: Sequence[Result], *, limits: Sequence[str] = (), complete: bool = True, errors: Sequence[str] = ()
) -> list[str]:
    """The whole summary, one string a line.

    Args:
        results: of one run.
        limits: what emulated results do not say, printed where there are any.
        complete: as for `amp_checks.report.summary.verdict`.
        errors: the same.
    """
    summary = summaries.summarise(results)
    told = [*_table(summary), ""]
    if known := summaries.known_by_reason(results):
        told.append("known defects (expected failures; each reproduced here):")
        told += [f"  {text}" for text in _known(known)]
        told.append("")
    if summary["emulated"]:
        told.append(f"emulated backends: {', '.join(summary['emulated'])}; of their results:")
        told += [f"  - {limit}" for limit in limits]
        told.append("")
    planted = f"{summary['planted']} faults planted, {summary['caught']} caught, here, on {_devices(summary)}"
    told.append(planted if summary["planted"] else "none of the sample of planted faults is in this selection")
    told.append(summaries.verdict(results, complete=complete, errors=errors))
    return told


def _table(summary: dict[str, Any]) -> list[str]:
    head = f"{'backend':<24}{'family':<13}" + "".join(f"{name:>10}" for name, _ in _COLUMNS)
    rows = [head, "-" * len(head)]
    for backend, families in summary["backends"].items():
        for family, counts in families.items():
            cells = "".join(f"{counts.get(str(status), 0) or '.':>10}" for _, status in _COLUMNS)
            rows.append(f"{backend:<24}{family:<13}{cells}")
    return rows


def _known(by_reason: Mapping[str, Sequence[Result]]) -> list[str]:
    """One line per reason; the other formats have the findings."""
    return [f"{reason} [{len(same)} items]" for reason, same in by_reason.items()]


def _devices(summary: dict[str, Any]) -> str:
    kinds = {"emulated" if name.startswith("emulated-") else name.partition("-")[0] for name in summary["backends"]}
    return ", ".join(sorted(kinds)) or "no device"
