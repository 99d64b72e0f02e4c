"""Known defects: ways in which a released torch, or a recipe kept as a warning, departs from what it promises.

An entry of ``fixtures/known_defects/<family>.json`` is an expected failure: a check, a case, backends, a range of torch
versions, the very findings it expects, a reason and a link. It is strict in both directions: an expected failure that
passes is a failure, a finding that it does not name is a failure, and an entry that no item matches is an error.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
from collections.abc import Iterable
from pathlib import Path

from amp_checks.core import Finding, Result, Status, SuiteError
from amp_checks.records import fixtures
from amp_checks.torch_api import machine

FIELDS = ("id", "check", "case", "backends", "torch", "expects", "reason", "link")
OPTIONAL = ("machine",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A failed finding that a defect explains; both are shell patterns, ``actual`` on the value's text."""

    subject: str
    actual: str = "*"

    def matches(self, finding: Finding) -> bool:
        return fnmatch.fnmatchcase(finding.subject, self.subject) and fnmatch.fnmatchcase(
            str(finding.actual), self.actual
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One entry. ``backends`` are shell patterns on ids; ``torch`` is a version specifier; ``link`` may be empty.

    ``machine`` names a condition of `amp_checks.torch_api.machine`: the defect shows only where that holds.
    """

    id: str
    check: str
    case: str
    backends: tuple[str, ...]
    torch: str
    expects: tuple[Expected, ...]
    reason: str
    link: str
    machine: str = ""

    def names(self, *, check: str, case: str, backend: str) -> bool:
        return (
            self.check == check
            and self.case == case
            and any(fnmatch.fnmatchcase(backend, pattern) for pattern in self.backends)
        )

    def in_range(self, version: str) -> bool:
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.torch).contains(version, prereleases=True)


def load(path: Path) -> tuple[Defect, ...]:
    """Read a file of entries.

    Raises:
        SuiteError: the file is missing or malformed; names the file, the entry and the field.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["defects"]
        return tuple(_entry(path, entry) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path.name} cannot be read as known defects: {type(error).__name__}: {error}"
        raise SuiteError(message) from error


def _entry(path: Path, entry: dict[str, object]) -> Defect:
    wrong = (set(entry) - set(OPTIONAL)) ^ set(FIELDS)
    expects = entry.get("expects")
    if wrong or not isinstance(expects, list) or not expects or not isinstance(entry["backends"], list):
        message = (
            f"{path.name}: entry {entry.get('id', '?')!r} needs exactly the fields {', '.join(FIELDS)}, with lists for "
            f"backends and expects, expects not empty; wrong or missing: {', '.join(sorted(wrong)) or 'a list'}"
        )
        raise SuiteError(message)
    texts = {name: str(entry[name]) for name in ("id", "check", "case", "torch", "reason", "link")}
    condition = str(entry.get("machine", ""))
    if condition not in machine.CONDITIONS:
        message = (
            f"{path.name}: entry {texts['id']!r} names the machine condition {condition!r}; "
            f"there are {', '.join(filter(None, machine.CONDITIONS))}"
        )
        raise SuiteError(message)
    return Defect(
        **texts,
        machine=condition,
        backends=tuple(entry["backends"]),
        expects=tuple(Expected(**expected) for expected in expects),
    )


@functools.cache
def registered() -> tuple[Defect, ...]:
    """The entries that hold for the torch that is running and the machine it runs on.

    Raises:
        SuiteError: a file is malformed, or two entries share an id.
    """
    import torch

    files = sorted(fixtures.fixture("known_defects").glob("*.json"))
    entries = [defect for file in files for defect in load(file)]
    ids = [defect.id for defect in entries]
    if twice := {name for name in ids if ids.count(name) > 1}:
        message = f"known defects: duplicate id {min(twice)!r}: each entry needs an id of its own"
        raise SuiteError(message)
    return tuple(defect for defect in entries if defect.in_range(torch.__version__) and machine.holds(defect.machine))


def judge(result: Result, defects: Iterable[Defect] | None = None) -> Result:
    """The result as it stands once known defects are taken into account."""
    for defect in registered() if defects is None else defects:
        if defect.names(check=result.check, case=result.case, backend=result.backend):
            return _apply(defect, result)
    return result


def _apply(defect: Defect, result: Result) -> Result:
    if result.status is Status.PASSED:
        return dataclasses.replace(
            result,
            status=Status.FAILED,
            message=f"known defect {defect.id!r} did not show: remove or narrow its entry ({defect.reason})",
        )
    if result.status is not Status.FAILED:
        return result
    new = [f for f in result.failures if not any(expected.matches(f) for expected in defect.expects)]
    gone = [e for e in defect.expects if not any(e.matches(finding) for finding in result.failures)]
    if new or gone:
        written = [f"not explained by known defect {defect.id!r}: {finding.subject}" for finding in new]
        written += [f"expected by known defect {defect.id!r}, but not found: {expected.subject}" for expected in gone]
        return dataclasses.replace(result, message="\n".join([*filter(None, [result.message]), *written]))
    link = f" ({defect.link})" if defect.link else ""
    return dataclasses.replace(result, status=Status.KNOWN_DEFECT, message=f"{defect.id}: {defect.reason}{link}")


def unmatched(names: Iterable[tuple[str, str, str]]) -> list[str]:
    """Ids of the entries that none of the (check, case, backend) names matches: dead entries hide nothing, and rot."""
    listed = list(names)
    return [
        defect.id
        for defect in registered()
        if not any(defect.names(check=check, case=case, backend=backend) for check, case, backend in listed)
    ]
