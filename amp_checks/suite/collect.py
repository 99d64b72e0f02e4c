"""Which checks apply to which case under which backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from amp_checks import backends as backend_table
from amp_checks.core import Case, Finding, SuiteError, UsageError, first_line
from amp_checks.suite.family import FAMILIES, cases, checks_for
from amp_checks.suite.item import Item
from amp_checks.torch_api.backend import Backend

NO_FAMILY = "unknown"
"""In place of a family, for an item that is in no table: one of a user's own cases."""


def items_of(some_cases: Iterable[Case], backends: Sequence[Backend]) -> Iterator[Item]:
    """Items of the given cases, case by case; a row that means nothing on a backend gives none."""
    for case in some_cases:
        for check in checks_for(case):
            for backend in backends:
                if case.runs_on(backend):
                    yield Item(check=check, case=case, backend=backend)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _BrokenFamily:
    """Stands for the rows of a family that could not be listed."""

    family: str
    reason: str
    id: str = "all"
    full: bool = False

    def runs_on(self, _: Backend) -> bool:
        return True


def check_family_can_be_listed(case: _BrokenFamily, _: Backend) -> Iterator[Finding]:
    """Always an error of the suite: a malformed table or fixture must neither pass nor take other families with it."""
    yield from ()
    raise SuiteError(f"family {case.family}: {case.reason}")


def collect_or_explain(*, backends: Sequence[Backend], families: Sequence[str] = (), full: bool = False) -> list[Item]:
    """As `collect`, but a family whose tables cannot be loaded becomes one item that is an error and says why."""
    items: list[Item] = []
    for family in families or FAMILIES:
        try:
            items += collect(backends=backends, families=[family], full=full)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a table raises, the other families still run
            reason = str(error) if isinstance(error, SuiteError) else f"{type(error).__name__}: {first_line(error)}"
            broken = _BrokenFamily(family=family, reason=reason, id=family)
            items.append(Item(check=check_family_can_be_listed, case=broken, backend=backends[0]))
    return items


def family_of(item: str, backend_id: str) -> str:
    """The family of an item that is known by its id alone; `NO_FAMILY` where no table has it."""
    if backend_id not in backend_table.IDS:
        return NO_FAMILY
    known = collect_or_explain(backends=[backend_table.backend(backend_id)], full=True)
    return next((found.case.family for found in known if found.id == item), NO_FAMILY)


def collect(
    *,
    backends: Sequence[Backend],
    families: Sequence[str] = (),
    full: bool = False,
) -> list[Item]:
    """The items of a run, always in the same order.

    Args:
        backends: as `amp_checks.backends.resolve` gives them.
        families: names from `FAMILIES`; all where empty.
        full: also the rows that the pull-request gate leaves to a nightly run.

    Raises:
        UsageError: a family is unknown.
        SuiteError: two items share an id, or a table is malformed.
    """
    items: list[Item] = []
    for family in families or FAMILIES:
        rows = [case for case in cases(family) if full or not case.full]
        items += items_of(rows, backends)
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            message = f"two items share the id {item.id!r}: rename one case in the table of its family"
            raise SuiteError(message)
        seen.add(item.id)
    return items
