"""Results as one self-contained HTML page: no network, no second file, readable without its script.

This module arranges what the page shows; ``templates/`` says how it looks, `amp_checks.report.plots` draws.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jinja2

from amp_checks import __version__
from amp_checks.core import Finding, Outcome, Result, Status
from amp_checks.core.limits import EMULATION
from amp_checks.report import audits, curves, plots, ranges, rerun, summary, worths
from amp_checks.report.document import AUDITS, WORTHS, Document
from amp_checks.report.summary import BAD

SLOWEST = 10
MOST_CURVES = 40
"""Curves drawn, those of failing items first: each costs a fifth of a second. The JSON has them all."""

MOST_FINDINGS = 25
"""Failed findings shown of one item; the JSON has them all."""

SIGNS = {
    Status.FAILED: "✗",
    Status.ERROR: "!",
    Status.KNOWN_DEFECT: "≠",
    Status.NOT_EMULATED: "∅",
    Status.PASSED: "✓",
    Status.UNAVAILABLE: "-",
}
"""Each status by a sign, so that colour alone says nothing; what needs looking at first comes first."""

_KINDS = {
    "CUDA": "CUDA devices",
    "CPU": "the CPU's own autocast",
    "emulated": "emulated: the device's rules, this CPU's kernels",
    "other": "other backends",
}

Matrix = tuple[str, list[str], list[tuple[str, list["Cell | None"]]]]
"""A family, its backends, and for each of its cases a cell for each backend; None where there is no such item."""

Measured = tuple[float, Finding, Result]
"""A measured size as a share of its threshold, the finding that holds it, the result that holds that."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All checks of one case on one backend.

    Attributes:
        status: the one that comes first in `SIGNS`.
        checks: how many there are.
        share: the largest measured ratio as a share of its threshold; None where all properties are exact.
        anchor: of the first failing item's card, or None.
    """

    status: Status
    checks: int
    share: float | None
    anchor: str | None

    @property
    def heat(self) -> int:
        """How near to its threshold: 0 for exact or far below, 4 for beyond."""
        return 0 if self.share is None else min(4, math.floor(min(self.share, 1.0) * 4))


def anchor(item: str) -> str:
    """The id of an item's card; the same in every page, for links from elsewhere."""
    return "item-" + re.sub(r"[^\w.-]", lambda found: f"~{ord(found[0]):x}", item, flags=re.ASCII)


def _kinds(results: Sequence[Result]) -> Iterator[tuple[str, str, list[tuple[str, str, dict[str, int]]]]]:
    """Kind of backend, what it is, and a row of counts for each backend and family; CUDA even where nothing ran."""
    for kind, words in _KINDS.items():
        mine = (result for result in results if summary.kind_of(result) == kind)
        by_row = summary.grouped(mine, lambda result: (result.backend, result.family))
        if by_row or kind in ("CUDA", "CPU"):
            yield kind, words, [(*names, summary.count(some)) for names, some in by_row.items()]


def _matrices(results: Sequence[Result], families: Sequence[str]) -> Iterator[Matrix]:
    """One for each family that has results: those of ``families`` first, in that order."""
    order = {kind: place for place, kind in enumerate(summary.KINDS)}
    for family in dict.fromkeys([*families, *sorted({result.family for result in results})]):
        mine = [result for result in results if result.family == family and family != "planted"]
        by_cell = summary.grouped(mine, lambda result: (result.case, result.backend))
        places = {result.backend: order[summary.kind_of(result)] for result in mine}
        backends = sorted(places, key=lambda name: (places[name], name))
        cases = sorted({result.case for result in mine})
        if mine:
            rows = [(case, [_cell(by_cell.get((case, name), [])) for name in backends]) for case in cases]
            yield family, backends, rows


def _cell(results: Sequence[Result]) -> Cell | None:
    if not results:
        return None
    worst = min(results, key=lambda result: list(SIGNS).index(result.status))
    shares = [
        summary.share(finding) for result in results for finding in result.findings if summary.is_measured(finding)
    ]
    return Cell(
        status=worst.status,
        checks=len(results),
        share=max(shares, default=None),
        anchor=anchor(worst.id) if worst.status in BAD else None,
    )


def _measured(results: Iterable[Result]) -> dict[tuple[str, str], list[Measured]]:
    """Check and kind of backend -> what it measured, the largest share last."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for result in results:
        for finding in result.findings:
            if summary.is_measured(finding):
                entry = (summary.share(finding), finding, result)
                found.setdefault((result.check, summary.kind_of(result)), []).append(entry)
    for entries in found.values():
        entries.sort(key=lambda entry: (entry[0], entry[2].id))
    return dict(sorted(found.items()))


def _facts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The environment, or a part of it, as names and words, nested values by dotted names."""
    if isinstance(value, dict):
        for part, one in value.items():
            yield from _facts(one, f"{name}.{part}" if name else part)
    elif isinstance(value, list) and value:
        for number, one in enumerate(value):
            yield from _facts(one, f"{name}[{number}]")
    else:
        yield name, "none" if value in (None, []) else str(value)


def _unmeasured(results: Iterable[Result]) -> list[tuple[Status, str, list[str]]]:
    """Status, reason and items, for what did not run."""
    mine = (result for result in results if result.status in (Status.NOT_EMULATED, Status.UNAVAILABLE))
    by_reason = summary.grouped(mine, lambda result: (result.status, result.message))
    return [(*why, [result.id for result in some]) for why, some in by_reason.items()]


def _size(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else str(value)


def _share(value: float) -> str:
    """A share with two decimals, or as a power of ten where it is too small for them."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2f}" if 0.005 <= value < 1000 or value == 0.0 else f"{value:.0e}"


def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("amp_checks.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"share": _share, "size": _size}
    return templates


def render(document: Document) -> str:
    """The document as one HTML page.

    Raises:
        SuiteError: a curve or an audit in it is malformed.
    """
    audited = audits.arrange(document.audits)
    counted = worths.arrange(document.worths)
    templates = _templates()
    results, environment = document.results, document.environment
    is_emulated = (
        [one.emulated for one in results] + [one.emulated for one in audited] + [one.emulated for one in counted]
    )
    emulated = any(is_emulated)
    shared = {
        "version": __version__,
        "audits": audited,
        "worths": [(one, plots.roofline(one, name=f"roofline-{number}")) for number, one in enumerate(counted)],
        "audit_signs": audits.SIGNS,
        "sizes": [words for _, words in audits.SIZES],
        "tight": audits.TIGHT,
        "limits": EMULATION if emulated else (),
    }
    if document.schema == AUDITS:
        return templates.get_template("audit_page.html.j2").render(**shared) + "\n"
    if document.schema == WORTHS:
        return templates.get_template("worth_page.html.j2").render(**shared) + "\n"
    measured = _measured(results)
    shares: dict[str, dict[str, list[float]]] = {}
    for (check, kind), entries in measured.items():
        shares.setdefault(check, {})[kind] = [entry[0] for entry in entries]
    bad = {result.id for result in results if result.status in BAD}
    drawn = curves.together(curves.read(entry) for entry in document.curves)
    drawn.sort(key=lambda curve: (not bad.intersection(curve.items), curve.title))
    page = templates.get_template("report.html.j2").render(
        **shared,
        verdict=document.verdict.line,
        state={Outcome.OK: "right", Outcome.WRONG: "wrong"}.get(document.verdict.outcome, "none"),
        complete=document.complete,
        errors=document.problems,
        found=summary.summarise(results),
        statuses=list(Status),
        signs=SIGNS,
        failing=[result for result in results if result.status in BAD],
        most_findings=MOST_FINDINGS,
        command=functools.partial(rerun.command, document=document),
        kinds=list(_kinds(results)),
        matrices=list(_matrices(results, document.selection.get("families", ()))),
        ratios=plots.ratios(shares, name="ratios") if measured else "",
        measured=measured,
        safe=ranges.drawn(results),
        known=summary.known_by_reason(results),
        planted=[result for result in results if result.family == "planted"],
        curves=[(one, plots.curve(one, name=f"curve-{number}")) for number, one in enumerate(drawn[:MOST_CURVES])],
        more_curves=len(drawn[MOST_CURVES:]),
        anchor=anchor,
        failing_ids=bad,
        unmeasured=_unmeasured(results),
        slowest=sorted(results, key=lambda result: (-result.seconds, result.id))[:SLOWEST],
        facts=list(_facts({name: value for name, value in environment.items() if name != "backends"})),
        parts=[list(_facts(part)) for part in document.environments],
        devices=", ".join(device["name"] for device in environment["devices"]) or "no CUDA device",
        environment=environment,
    )
    return page + "\n"
