"""Results as Markdown, for a pull request or ``$GITHUB_STEP_SUMMARY``: the verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp_checks.core import Result
from amp_checks.core.limits import EMULATION
from amp_checks.report import rerun, summary
from amp_checks.report.document import Document

SLOWEST = 5
MOST_FAILURES = 50
MOST_CASES = 4
"""Cases named in a row of a table of what was covered."""


def render(document: Document) -> str:
    """The document as Markdown."""
    results = document.results
    found = summary.summarise(results)
    written = [f"## amp_checks: {document.verdict.line}", ""]
    written += [line for problem in document.problems for line in (f"**Error**: {problem}", "")]
    if not document.complete:
        written += ["**Incomplete**: the run was interrupted; what did not finish is not counted.", ""]
    written += [f"{found['planted']} faults planted, {found['caught']} caught. {_environment(document)}", ""]
    written += _table(results)
    written += _failures(document)
    written += _known(results)
    written += _tables(document)
    if found["emulated"]:
        written += ["### What emulated results do not say", "", *(f"- {limit}" for limit in EMULATION), ""]
    written += _slowest(results)
    return "\n".join(written)


def _environment(document: Document) -> str:
    found = document.environment
    devices = ", ".join(device["name"] for device in found["devices"]) or "no CUDA device"
    parts = [part.get("torch", found["torch"]) for part in document.environments]
    versions = " and ".join(dict.fromkeys([found["torch"], *parts]))
    written = f"torch {versions}, {devices}, driver {found['driver'] or 'none'}."
    lacking = {name: why for name, why in found["backends"].items() if name.startswith("cuda-") and why}
    # Without a device the table says "not run" of all of CUDA; with one, what that device cannot run needs a word.
    return " ".join([written, *(f"`{name}` is not run: {why}." for name, why in lacking.items() if found["devices"])])


def cell(text: str) -> str:
    """The text as a cell of a table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _table(results: Sequence[Result]) -> list[str]:
    """Real CUDA, the CPU and emulation in separate columns; a family without a run says so."""
    kinds = [kind for kind in summary.KINDS if kind != "other" or any(summary.kind_of(one) == kind for one in results)]
    written = [f"| family | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for family in sorted({result.family for result in results}):
        cells = []
        for kind in kinds:
            mine = [one for one in results if one.family == family and summary.kind_of(one) == kind]
            cells.append(_counted(summary.count(mine)) or "not run")
        written.append(f"| {family} | {' | '.join(cells)} |")
    return [*written, ""]


def _failures(document: Document) -> list[str]:
    bad = [result for result in document.results if result.status in summary.BAD]
    if not bad:
        return []
    written = ["### Failures", ""]
    for result in bad[:MOST_FAILURES]:
        written += [f"**`{result.id}`** ({result.status})", "", "```", *result.describe().splitlines()[1:], "```", ""]
        written += [f"Run it again: `{rerun.command(result, document)}`", ""]
    if len(bad) > MOST_FAILURES:
        written += [f"... and {len(bad) - MOST_FAILURES} more; the JSON report has them all.", ""]
    return written


def _tables(document: Document) -> list[str]:
    """What the rows of a family cover, folded, with the verdicts of this run; nothing of families that did not run."""
    written: list[str] = []
    for table in document.tables:
        mine = (result for result in document.results if result.family == table["family"])
        if by_case := summary.grouped(mine, lambda result: result.case):
            written += [f"<details><summary>{table['family']}: covered by {table['title']}</summary>", ""]
            written += [f"| {table['title']} | cases | known defects | verdicts |", "| --- | --- | --- | --- |"]
            written += [_row(row, by_case) for row in table["rows"]]
            written += ["", "</details>", ""]
    return written


def _row(row: dict[str, Any], by_case: dict[str, list[Result]]) -> str:
    cases, defects = row["cases"], "; ".join(row["defects"])
    shown = ", ".join(f"`{case}`" for case in cases[:MOST_CASES])
    more = f" and {len(cases) - MOST_CASES} more" if len(cases) > MOST_CASES else ""
    counts = summary.count(result for case in cases for result in by_case.get(case, ()))
    return f"| {row['name']} | {shown}{more} | {defects} | {_counted(counts) or 'none ran'} |"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number)


def _known(results: Sequence[Result]) -> list[str]:
    rows = [f"| {cell(reason)} | {len(same)} |" for reason, same in summary.known_by_reason(results).items()]
    return ["### Known defects that showed", "", "| defect | items |", "|---|---|", *rows, ""] if rows else []


def _slowest(results: Sequence[Result]) -> list[str]:
    slow = sorted(results, key=lambda result: -result.seconds)[:SLOWEST]
    rows = [f"| `{result.id}` | {result.seconds:.1f} |" for result in slow]
    return ["### Slowest items", "", "| item | seconds |", "|---|---|", *rows, ""] if rows else []
