"""The second front: the suite's checks in a user's own tests."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amp_checks import backends as backend_table
from amp_checks.core import Case, SuiteError, UsageError
from amp_checks.suite.collect import items_of
from amp_checks.suite.family import FAMILIES
from amp_checks.suite.item import Item, markers


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
                'family\'s table, such as those of amp_checks.cases("ops") (id, family, full, runs_on); families are '
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
