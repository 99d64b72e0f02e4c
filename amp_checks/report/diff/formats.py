"""A comparison of two documents as text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp_checks.report.diff.difference import Change, Difference
from amp_checks.report.markdown import cell
from amp_checks.report.values import dumps

SCHEMA = "amp_checks/diff"
VERSION = 1

SECTIONS = {
    "verdicts": "Verdicts that changed",
    "failures": "Failed findings that appeared or vanished",
    "expectations": "Rules that changed",
    "drift": "Error ratios that drifted (ratio of threshold)",
    "vanished": "Items that vanished",
    "appeared": "Items that appeared",
    "times": "Items much slower or faster",
    "environment": "Environment",
}
"""Lists of a `Difference` in the order in which they are shown, with their titles."""

MOST = 30
"""Changes shown of each list; the JSON has them all. What is worse comes first."""


def _sections(found: Difference) -> list[tuple[str, list[Change], int]]:
    """Title, the changes to show, how many there are; empty lists left out."""
    written = []
    for name, title in SECTIONS.items():
        changes: list[Change] = sorted(getattr(found, name), key=lambda change: not change.worse)
        if changes:
            written.append((title, changes[:MOST], len(changes)))
    return written


def _seconds(found: Difference) -> str:
    written = [f"{seconds:.1f} s" if seconds else "no times recorded" for seconds in found.seconds]
    return f"{found.items} items in both: {', then '.join(written) if any(found.seconds) else written[0]}"


def text(found: Difference) -> str:
    """For a terminal: the verdict last, as in a run."""
    written = []
    for title, changes, number in _sections(found):
        written += ["", f"{title} ({number}):"]
        for change in changes:
            mark = "worse " if change.worse else "      "
            subject = f": {change.subject}" if change.subject else ""
            written.append(f"{mark}{change.item}{subject}")
            written.append(f"        {change.old or '(none)'} -> {change.new or '(none)'}")
        if number > len(changes):
            written.append(f"      ... and {number - len(changes)} more; --format json has them all")
    return "\n".join([*written, "", _seconds(found), found.verdict()]).lstrip("\n") + "\n"


def markdown(found: Difference) -> str:
    """For a pull request: the verdict first."""
    written = [f"## amp_checks diff: {found.verdict()}", "", f"{_seconds(found)}.", ""]
    for title, changes, number in _sections(found):
        written += [f"### {title} ({number})", "", "| | item | old | new |", "|---|---|---|---|"]
        for change in changes:
            subject = f"<br>{cell(change.subject)}" if change.subject else ""
            cells = (cell(change.old or ""), cell(change.new or ""))
            worse = "worse" if change.worse else ""
            written.append(f"| {worse} | `{cell(change.item)}`{subject} | {' | '.join(cells)} |")
        written += ["", *([f"... and {number - len(changes)} more.", ""] if number > len(changes) else [])]
    return "\n".join(written)


def as_json(found: Difference) -> str:
    """Schema ``amp_checks/diff``, version 1: the fields of `Difference`, and its verdict."""
    head = {"schema": SCHEMA, "version": VERSION, "verdict": found.verdict(), "worse": found.worse}
    return dumps({**head, **dataclasses.asdict(found)})


FORMATS: dict[str, Callable[[Difference], str]] = {"text": text, "markdown": markdown, "json": as_json}
"""The formats of a comparison: the one place to add another."""
