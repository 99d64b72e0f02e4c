"""How a rule over time is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from amp_checks.audit.finding import Found, Severity
from amp_checks.monitor.history import History

Function = Callable[[History], Iterator[Found]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule.

    Attributes:
        id: what reports call it.
        on: the kind of record after which it looks: step, sample, nonfinite.
        severity: of what it finds, where a finding does not say otherwise.
        remedy: what to change.
        function: yields what it finds; its docstring says why it is a fault.
    """

    id: str
    on: str
    severity: Severity
    remedy: str
    function: Function


RULES: dict[str, Rule] = {}


def rule(id: str, on: str, severity: Severity, *, remedy: str) -> Callable[[Function], Function]:  # noqa: A002 - its name
    """Declare a rule."""

    def declare(function: Function) -> Function:
        if id in RULES:
            raise ValueError(f"two rules are called {id!r}")
        RULES[id] = Rule(id=id, on=on, severity=severity, remedy=remedy, function=function)
        return function

    return declare
