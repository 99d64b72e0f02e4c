"""Two documents compared: verdicts, findings, expectations, error ratios, time, environment.

Items are matched by id, findings by subject within their item; what the newer run did not select is left out. What got
*worse* is what a gate stops: an item that failed or broke and did not before, one that no longer runs, a failed finding
that is new, an error ratio that moved nearer to its threshold (or beyond) by more than ``drift`` of it. Time never
gates: it depends on the machine's load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from amp_checks.core import RAN, Finding, Result, Status
from amp_checks.report import summary
from amp_checks.report.diff.difference import Change, Difference
from amp_checks.report.document import Document

DRIFT = 0.1
"""Change of an error ratio, in shares of its threshold, that is reported: the noise of one machine stays well below."""

SLOWER = 2.0
SLOWER_SECONDS = 1.0
"""An item is reported as slower or faster from this factor, if it is at least so many seconds."""


def compare(old: Document, new: Document, *, drift: float = DRIFT) -> Difference:
    """Compare two documents.

    Args:
        old: the document to measure against.
        new: the document under question.
        drift: change of an error ratio, in shares of its threshold, from which it is reported.

    Raises:
        SuiteError: one of them holds audits alone.
    """
    before = {result.id: result for result in old.only_results()}
    after = {result.id: result for result in new.only_results()}
    common = sorted(before.keys() & after.keys())
    pairs = [(before[name], after[name]) for name in common]
    return Difference(
        items=len(common),
        environment=list(_environment(old.environment, new.environment)),
        appeared=[
            Change(item=name, old=None, new=str(after[name].status), worse=after[name].status in summary.BAD)
            for name in sorted(after.keys() - before.keys())
        ],
        vanished=[
            Change(item=name, old=str(before[name].status), new=None, worse=before[name].status in RAN)
            for name in sorted(before.keys() - after.keys())
            if _is_selected(before[name], new.selection)
        ],
        verdicts=[
            Change(item=one.id, old=str(one.status), new=str(two.status), worse=_is_worse(one.status, two.status))
            for one, two in pairs
            if one.status is not two.status
        ],
        failures=[change for pair in pairs for change in _failures(*pair)],
        expectations=[change for pair in pairs for change in _expectations(*pair)],
        drift=[change for pair in pairs for change in _drift(*pair, least=drift)],
        times=[change for pair in pairs for change in _times(*pair)],
        seconds=(sum(one.seconds for one, _ in pairs), sum(two.seconds for _, two in pairs)),
        incomplete=[name for name, one in (("OLD", old), ("NEW", new)) if not one.complete],
    )


def _is_selected(result: Result, selection: dict[str, Any]) -> bool:
    """Whether a run with that selection would have run the item: by backend, by family, by id."""
    if items := selection.get("items"):
        return result.id in items
    backends, families = selection.get("backends"), selection.get("families")
    return (not backends or result.backend in backends) and (not families or result.family in families)


def _is_worse(old: Status, new: Status) -> bool:
    """A new failure; or an item that ran and no longer does; or a defect where there was none."""
    if new in summary.BAD:
        return True
    if new is Status.KNOWN_DEFECT:
        return old is Status.PASSED
    return old in RAN and new not in RAN


def _environment(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        one, two = old.get(name), new.get(name)
        if isinstance(one, dict) and isinstance(two, dict):
            for change in _environment(one, two):
                yield dataclasses.replace(change, item=f"{name}.{change.item}")
        elif one != two:
            yield Change(item=name, old=None if one is None else str(one), new=None if two is None else str(two))


def _named(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Findings by subject; a subject that comes again is numbered."""
    named: dict[str, Finding] = {}
    for finding in findings:
        name, number = finding.subject, 1
        while name in named:
            number += 1
            name = f"{finding.subject} ({number})"
        named[name] = finding
    return named


def _failures(old: Result, new: Result) -> Iterator[Change]:
    one, two = _named(old.findings), _named(new.findings)
    for name in [*one, *(name for name in two if name not in one)]:
        failed_before = name in one and not one[name].passed
        fails_now = name in two and not two[name].passed
        if failed_before is fails_now:
            continue
        yield Change(
            item=new.id,
            subject=name,
            old=one[name].describe() if failed_before else None,
            new=two[name].describe() if fails_now else None,
            worse=fails_now,
        )


def _common(old: Result, new: Result) -> Iterator[tuple[str, Finding, Finding]]:
    one, two = _named(old.findings), _named(new.findings)
    return ((name, one[name], two[name]) for name in one if name in two)


def _expectations(old: Result, new: Result) -> Iterator[Change]:
    for name, one, two in _common(old, new):
        if summary.is_measured(one) or summary.is_measured(two) or one.expected == two.expected:
            continue
        yield Change(item=new.id, subject=name, old=str(one.expected), new=str(two.expected))


def _drift(old: Result, new: Result, *, least: float) -> Iterator[Change]:
    for name, one, two in _common(old, new):
        if not (summary.is_measured(one) or summary.is_measured(two)):
            continue
        before, after = summary.share(one), summary.share(two)
        moved = before != after and not abs(after - before) < least  # two infinities are the same; inf - 1 is not
        if moved or one.threshold != two.threshold:
            yield Change(
                item=new.id,
                subject=name,
                old=f"{one.ratio:.4g} of {one.threshold:.4g}",
                new=f"{two.ratio:.4g} of {two.threshold:.4g}",
                worse=moved and after > before,
            )


def _times(old: Result, new: Result) -> Iterator[Change]:
    quick, slow = sorted((old.seconds, new.seconds))
    if quick and slow >= SLOWER_SECONDS and slow >= SLOWER * quick:
        yield Change(item=new.id, old=f"{old.seconds:.1f} s", new=f"{new.seconds:.1f} s")
