"""One check on one case under one backend, run for its result or inside a test."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import TYPE_CHECKING

from amp_checks import backends as backend_table
from amp_checks.core import Case, Check, Result, Status, item_id
from amp_checks.records import known_defects
from amp_checks.suite.measure import measure, record
from amp_checks.torch_api.backend import Backend

if TYPE_CHECKING:
    from amp_checks.suite.planting import Mutant


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One check on one case under one backend; call it inside a test, or `run` it for its result.

    Attributes:
        check, case, backend: what runs.
        mutant: a fault that is planted around the run, or None.
    """

    check: Check
    case: Case
    backend: Backend
    mutant: Mutant | None = None

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


def markers(item: Item) -> tuple[str, ...]:
    """The pytest markers of an item, for ``-m``: ``emulated``, or the device type (``cuda``, ``cpu``)."""
    return ("emulated",) if item.backend.emulated else (item.backend.device_type,)
