"""Results as Markdown, for a pull request or ``$GITHUB_STEP_SUMMARY``: the verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp_checks.core import Result, Status
from amp_checks.core.limits import EMULATION
from amp_checks.report import json_format, rerun, summary

SLOWEST = 5
MOST_FAILURES = 50


def render(content: dict[str, Any]) -> str:
    """The document as Markdown."""
    results = json_format.results_of(content)
    found = content["summary"]
    errors = content.get("errors", [])
    told = [f"## amp_checks: {summary.verdict(results, complete=content['complete'], errors=errors)}", ""]
    told += [line for error in errors for line in (f"**Error**: {error}", "")]
    if not content["complete"]:
        told += ["**Incomplete**: the run was interrupted; what did not finish is not counted.", ""]
    told += [f"{found['planted']} faults planted, {found['caught']} caught. {_environment(content)}", ""]
    told += _table(results)
    bad = [result for result in results if result.status in (Status.FAILED, Status.ERROR)]
    told += _failures(bad, content)
    told += _known(results)
    if found["emulated"]:
        told += ["### What emulated results do not say", "", *(f"- {limit}" for limit in EMULATION), ""]
    told += _slowest(results)
    return "\n".join(told)


def _environment(content: dict[str, Any]) -> str:
    found = content["environment"]
    devices = ", ".join(device["name"] for device in found["devices"]) or "no CUDA device"
    parts = [part.get("torch", found["torch"]) for part in content.get("environments", ())]
    versions = " and ".join(dict.fromkeys([found["torch"], *parts]))
    told = f"torch {versions}, {devices}, driver {found['driver'] or 'none'}."
    lacking = {name: why for name, why in found["backends"].items() if name.startswith("cuda-") and why}
    # Without a device the table says "not run" of all of CUDA; with one, what that device cannot run needs a word.
    return " ".join([told, *(f"`{name}` is not run: {why}." for name, why in lacking.items() if found["devices"])])


def cell(text: str) -> str:
    """The text as a cell of a table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _table(results: Sequence[Result]) -> list[str]:
    """Real CUDA, the CPU and emulation in separate columns; a family without a run says so."""
    kinds = [kind for kind in summary.KINDS if kind != "other" or any(summary.kind_of(one) == kind for one in results)]
    told = [f"| family | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for family in sorted({result.family for result in results}):
        cells = []
        for kind in kinds:
            mine = [one for one in results if one.family == family and summary.kind_of(one) == kind]
            counts = {name: number for name, number in summary.count(mine).items() if number}
            cells.append(", ".join(f"{number} {name}" for name, number in counts.items()) or "not run")
        told.append(f"| {family} | {' | '.join(cells)} |")
    return [*told, ""]


def _failures(bad: Sequence[Result], content: dict[str, Any]) -> list[str]:
    if not bad:
        return []
    told = ["### Failures", ""]
    for result in bad[:MOST_FAILURES]:
        told += [f"**`{result.id}`** ({result.status})", "", "```", *result.describe().splitlines()[1:], "```", ""]
        told += [f"Run it again: `{rerun.command(result, content)}`", ""]
    if len(bad) > MOST_FAILURES:
        told += [f"... and {len(bad) - MOST_FAILURES} more; the JSON report has them all.", ""]
    return told


def _known(results: Sequence[Result]) -> list[str]:
    rows = [f"| {cell(reason)} | {len(same)} |" for reason, same in summary.known_by_reason(results).items()]
    return ["### Known defects that showed", "", "| defect | items |", "|---|---|", *rows, ""] if rows else []


def _slowest(results: Sequence[Result]) -> list[str]:
    slow = sorted(results, key=lambda result: -result.seconds)[:SLOWEST]
    rows = [f"| `{result.id}` | {result.seconds:.1f} |" for result in slow]
    return ["### Slowest items", "", "| item | seconds |", "|---|---|", *rows, ""] if rows else []
