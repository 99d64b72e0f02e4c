"""A family of checks as a value, and the registry in which families are looked up by name."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from amp_checks.core import Case, Check, unknown
from amp_checks.torch_api.backend import Backend

if TYPE_CHECKING:
    from amp_checks.suite.planting import Mutant, Tally

Progress = Callable[[str], None]
Bulk = Callable[[Progress], Iterable["Tally"]]
Curves = Callable[[Any, Backend], list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family brings.

    Attributes:
        name: as ``--family`` takes it, and as its rows name it.
        cases: its rows.
        checks_for: the checks that apply to a row, whatever the backend.
        mutants: its planted faults; each names the checks that must catch it.
        bulk: more planted faults, for the self-test alone: functions from a line-by-line progress to tallies, such as
            the removal of every rule.
        curves: name of a check -> the curves of what it ran, as `amp_checks.report.curves` has them.
        tables: what its rows cover, for reports: as `amp_checks.report.document` has them.
    """

    name: str
    cases: Sequence[Case]
    checks_for: Callable[[Any], Iterator[Check]]
    mutants: Sequence[Mutant] = ()
    bulk: Sequence[Bulk] = ()
    curves: Mapping[str, Curves] = dataclasses.field(default_factory=dict)
    tables: Sequence[Callable[[], dict[str, Any]]] = ()


class Registry(MutableMapping[str, Family]):
    """Name -> family, in the order of reports. A declared family is imported when it is first asked for."""

    def __init__(self) -> None:
        self._families: dict[str, Family | str] = {}

    def declare(self, name: str, module: str) -> None:
        """Make a family known by the module whose ``FAMILY`` it is, without importing that module."""
        self._families[name] = module

    def __getitem__(self, name: str) -> Family:
        if name not in self._families:
            raise unknown("family", name, self)
        found = self._families[name]
        if isinstance(found, str):
            found = self._families[name] = importlib.import_module(found).FAMILY
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._families

    def __setitem__(self, name: str, family: Family) -> None:
        self._families[name] = family

    def __delitem__(self, name: str) -> None:
        del self._families[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._families)

    def __len__(self) -> int:
        return len(self._families)


FAMILIES = Registry()
"""Every family; `amp_checks.families` declares those of the suite."""


def cases(family: str) -> Sequence[Case]:
    """The rows of a family.

    Raises:
        UsageError: there is no such family.
    """
    return FAMILIES[family].cases


def checks_for(case: Case) -> Iterator[Check]:
    """Every check that applies to the case, whatever the backend."""
    yield from FAMILIES[case.family].checks_for(case)
