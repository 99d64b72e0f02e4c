"""Which checks apply to which case under which backend: one listing, two fronts (our items, a user's tests).

The one place to add a family is `FAMILIES`. A family is a module of cases (``CASES``), a module of checks
(``checks_for(case)`` yields those that apply) and a module of mutants (``MUTANTS``).
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from amp_checks import backends as backend_table
from amp_checks import known_defects
from amp_checks.core import (
    Backend,
    Case,
    Check,
    Finding,
    Result,
    Status,
    SuiteError,
    UsageError,
    first_line,
    item_id,
    measure,
    record,
)

FAMILIES: dict[str, str] = {
    "ops": "ops",
    "fp32-only": "fp32_only",
    "scaler": "scaler",
    "convergence": "convergence",
    "audit": "audit",
    "planted": "planted",
}
"""Family -> the name of its modules in ``cases`` and ``checks`` (and, ``planted`` apart, ``mutants``)."""


NO_FAMILY = "unknown"
"""In place of a family, for an item that is in no table: one of a user's own cases."""


def _module(package: str, family: str) -> Any:
    if family not in FAMILIES:
        message = f"unknown family {family!r}; there are {', '.join(FAMILIES)}"
        raise UsageError(message)
    return importlib.import_module(f"amp_checks.{package}.{FAMILIES[family]}")


def cases(family: str) -> Sequence[Case]:
    """The table of a family."""
    found: Sequence[Case] = _module("cases", family).CASES
    return found


def checks_for(case: Case) -> Iterator[Check]:
    """Every check that applies to the case, whatever the backend."""
    yield from _module("checks", case.family).checks_for(case)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One check on one case under one backend; call it inside a test, or `run` it for its result.

    Attributes:
        check, case, backend: what runs.
        mutant: an `amp_checks.planting.Mutant` that is planted around the run, or None.
    """

    check: Check
    case: Case
    backend: Backend
    mutant: Any = None

    @property
    def id(self) -> str:
        return item_id(self.check.__name__, self.case.id, self.backend.id)

    def run(self) -> Result:
        """The verdict. A backend that this machine lacks gives `Status.UNAVAILABLE`, and nothing runs."""
        reason = backend_table.why_unavailable(self.backend.id) if self.backend.id in backend_table.IDS else None
        if reason is None:
            with nullcontext(self.backend) if self.mutant is None else self.mutant.plant(self.backend) as backend:
                return run(self.check, self.case, backend)
        unavailable = Result(
            check=self.check.__name__,
            case=self.case.id,
            family=self.case.family,
            backend=self.backend.id,
            emulated=self.backend.emulated,
            status=Status.UNAVAILABLE,
            message=reason,
        )
        return record(unavailable)

    def __call__(self) -> None:
        """Run inside a pytest test: fail, skip or expect failure as the verdict says."""
        __tracebackhide__ = True
        conclude(self.run())


def run(check: Check, case: Case, backend: Backend) -> Result:
    """The verdict on one check of one case under one backend, known defects taken into account, and recorded."""
    return record(known_defects.judge(measure(check, case, backend)))


class CheckFailed(AssertionError):
    """A check failed; the text is the result's description."""


class CheckBroken(Exception):
    """The suite itself failed on an item; the text is the result's description."""


def conclude(result: Result) -> None:
    """Turn a verdict into pytest's outcome of the test that is running."""
    import pytest

    __tracebackhide__ = True
    match result.status:
        case Status.PASSED:
            return
        case Status.KNOWN_DEFECT:
            pytest.xfail(result.message)
        case Status.UNAVAILABLE | Status.NOT_EMULATED:
            pytest.skip(f"{result.status}: {result.message}")
        case Status.ERROR:
            raise CheckBroken(result.describe())
        case _:
            raise CheckFailed(result.describe())


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


def parametrize_with_checks(
    some_cases: Iterable[Case], *, backends: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a test with one argument, ``item``, which it calls::

        @parametrize_with_checks(my_cases)
        def test_amp(item):
            item()

    Args:
        some_cases: rows of any family.
        backends: ids from the table; the default ones of this machine where empty.

    Raises:
        pytest.Collector.CollectError: an argument means nothing, or there is nothing to run: pytest shows the message
            alone, and the run is not green.
    """
    import pytest

    try:
        items = _items_to_parametrize(some_cases, backends)
    except SuiteError as error:
        caller = sys._getframe(1)  # a module may hold many decorators: which is it?
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        raise pytest.Collector.CollectError(f"{place}: parametrize_with_checks: {error}") from None
    marks = [
        pytest.param(item, id=item.id, marks=[getattr(pytest.mark, name) for name in markers(item)]) for item in items
    ]
    return pytest.mark.parametrize("item", marks)


def _items_to_parametrize(some_cases: object, backend_ids: object) -> list[Item]:
    """What `parametrize_with_checks` stands for.

    Raises:
        UsageError: as it says.
    """
    if not isinstance(some_cases, Iterable) or isinstance(some_cases, str):
        raise UsageError(f"some_cases is {some_cases!r}, and should be a list of cases")
    rows = list(some_cases)
    for number, row in enumerate(rows):
        if not (isinstance(row, Case) and row.family in FAMILIES):
            raise UsageError(
                f"some_cases[{number}] is {row!r}, of type {type(row).__name__}, and no case: a case is a row of a "
                "family's table, such as those in amp_checks.cases.ops.CASES (id, family, full, runs_on); families are "
                + ", ".join(FAMILIES)
            )
    if not isinstance(backend_ids, Iterable) or isinstance(backend_ids, str):
        raise UsageError(f"backends is {backend_ids!r}, and should be a list of ids")
    chosen = backend_table.resolve(list(backend_ids))
    items = list(items_of(rows, chosen))
    if not items:
        what = f"none of the {len(rows)} cases has a check that runs" if rows else "some_cases is empty"
        raise UsageError(f"nothing to run: {what} (backends: {', '.join(backend.id for backend in chosen)})")
    if twice := [name for name, count in Counter(item.id for item in items).items() if count > 1]:
        raise UsageError(f"two cases give an item of the id {twice[0]!r}: each case needs an id of its own")
    return items


def markers(item: Item) -> tuple[str, ...]:
    """The pytest markers of an item, for ``-m``: ``emulated``, or the device type (``cuda``, ``cpu``)."""
    return ("emulated",) if item.backend.emulated else (item.backend.device_type,)
