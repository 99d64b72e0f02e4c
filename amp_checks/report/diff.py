"""Two results documents compared: verdicts, findings, expectations, error ratios, time, environment.

Items are matched by id, findings by subject within their item; what the newer run did not select is left out. What got
*worse* is what a gate stops: an item that failed or broke and did not before, one that no longer runs, a failed finding
that is new, an error ratio that moved nearer to its threshold (or beyond) by more than ``drift`` of it. Time never
gates: it depends on the machine's load.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_checks.core import Finding, Result, Status, UsageError
from amp_checks.report import diff_formats, json_format, recorded, summary

SCHEMA = "amp_checks/diff"
VERSION = 1

DRIFT = 0.1
"""Change of an error ratio, in shares of its threshold, that is told: the noise of one machine stays well below."""

SLOWER = 2.0
SLOWER_SECONDS = 1.0
"""An item is told as slower or faster from this factor, if it is at least so many seconds."""

GATES = ("worse", "any", "never")

_BAD = (Status.FAILED, Status.ERROR)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Attributes:
        item: id of the item, or the name of a value of the environment.
        subject: what differs within it: a finding's subject, or empty.
        old, new: both sides for a reader; None where a side has nothing.
        worse: whether it counts as worse.
    """

    item: str
    subject: str = ""
    old: str | None
    new: str | None
    worse: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All that differs, each list sorted by item.

    Attributes:
        items: how many items both documents hold.
        environment: values of the environment.
        appeared, vanished: items that one document holds alone, with their status.
        verdicts: items whose status changed.
        failures: failed findings that appeared (old is None) or vanished (new is None) in items that both hold.
        expectations: findings on exact properties whose expected value changed: rules that changed.
        drift: error ratios that moved, in shares of their thresholds.
        times: items that became much slower or faster.
        seconds: wall time of the items that both hold, old and new.
        incomplete: names of the documents of runs that did not finish.
    """

    items: int
    environment: Sequence[Change]
    appeared: Sequence[Change]
    vanished: Sequence[Change]
    verdicts: Sequence[Change]
    failures: Sequence[Change]
    expectations: Sequence[Change]
    drift: Sequence[Change]
    times: Sequence[Change]
    seconds: tuple[float, float]
    incomplete: Sequence[str]

    @property
    def changes(self) -> list[Change]:
        """What a verdict can depend on: neither time nor environment."""
        lists = (self.appeared, self.vanished, self.verdicts, self.failures, self.expectations, self.drift)
        return [change for some in lists for change in some]

    @property
    def worse(self) -> int:
        """How many items are worse; one cause may show as several changes of an item."""
        return len({change.item for change in self.changes if change.worse})

    def verdict(self) -> str:
        """The one line that a person reads first."""
        if self.worse:
            return f"WORSE: {self.worse} items are worse ({len(self.changes)} differences in all)"
        if self.incomplete:
            return f"NO VERDICT: {' and '.join(self.incomplete)} did not finish"
        if self.changes:
            return f"not worse: {len(self.changes)} differences, none for the worse"
        return f"the same: {self.items} items, no difference"


def compare(old: dict[str, Any], new: dict[str, Any], *, drift: float = DRIFT) -> Difference:
    """Compare two results documents.

    Args:
        old: the document to measure against.
        new: the document under question.
        drift: change of an error ratio, in shares of its threshold, from which it is told.

    Raises:
        SuiteError: a result in one of them is malformed.
    """
    before = {result.id: result for result in json_format.results_of(old)}
    after = {result.id: result for result in json_format.results_of(new)}
    common = sorted(before.keys() & after.keys())
    pairs = [(before[name], after[name]) for name in common]
    return Difference(
        items=len(common),
        environment=list(_environment(old["environment"], new["environment"])),
        appeared=[
            Change(item=name, old=None, new=str(after[name].status), worse=after[name].status in _BAD)
            for name in sorted(after.keys() - before.keys())
        ],
        vanished=[
            Change(item=name, old=str(before[name].status), new=None, worse=before[name].status in summary.RAN)
            for name in sorted(before.keys() - after.keys())
            if _is_selected(before[name], new.get("selection", {}))
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
        incomplete=[name for name, content in (("OLD", old), ("NEW", new)) if not content["complete"]],
    )


def _is_selected(result: Result, selection: dict[str, Any]) -> bool:
    """Whether a run with that selection would have run the item: by backend, by family, by id."""
    if items := selection.get("items"):
        return result.id in items
    backends, families = selection.get("backends"), selection.get("families")
    return (not backends or result.backend in backends) and (not families or result.family in families)


def _is_worse(old: Status, new: Status) -> bool:
    """A new failure; or an item that ran and no longer does; or a defect where there was none."""
    if new in _BAD:
        return True
    if new is Status.KNOWN_DEFECT:
        return old is Status.PASSED
    return old in summary.RAN and new not in summary.RAN


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    parser.add_argument("old", metavar="OLD", help="results written by --json, cast policies, or a torch version")
    parser.add_argument("new", metavar="NEW", help="results under question")
    parser.add_argument(
        "--results", action="store_true", help="of two torch versions, compare the recorded results, not the rules"
    )
    parser.add_argument("--format", default="text", choices=sorted(diff_formats.FORMATS), help="default: text")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--drift",
        type=float,
        default=DRIFT,
        metavar="SHARE",
        help=f"tell error ratios that moved by so much of their threshold (default: {DRIFT})",
    )
    parser.add_argument("--fail-on", default="worse", choices=GATES, help="what gives exit status 1 (default: worse)")


def _side(name: str) -> dict[str, Any]:
    """Results by the name of their file, or by a torch version whose results ship with the package."""
    if name in recorded.versions() and not Path(name).exists():
        return recorded.read(name)
    if not Path(name).exists():
        raise UsageError(
            f"{name!r} is neither a file nor a torch version with recorded results; those are "
            f"{', '.join(recorded.versions())}"
        )
    return json_format.read(Path(name))


def main(args: argparse.Namespace) -> int:
    """Compare two files, or recorded results with one or the other.

    Exit status 1 on what ``--fail-on`` names, 4 where an unfinished run leaves no verdict.

    Raises:
        UsageError: ``--drift`` is no share of a threshold, or a side is neither a file nor a recorded version.
        SuiteError: a file cannot be read or written, or holds no results.
    """
    if not args.drift > 0.0:
        raise UsageError(f"--drift takes a positive share of a threshold, such as {DRIFT}, not {args.drift}")
    old, new = _side(args.old), _side(args.new)
    found = compare(old, new, drift=args.drift)
    text = diff_formats.FORMATS[args.format](found)
    if args.output:
        json_format.write_text(Path(args.output), text)
    else:
        sys.stdout.write(text)
    if args.fail_on == "never":
        return 0
    if found.worse or (args.fail_on == "any" and found.changes):
        return 1
    if found.incomplete:
        sys.stderr.write(f"amp-checks: error: {found.verdict()}\n")
        return 4
    return 0
