"""How a rule is declared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.watching.events import Event

Function = Callable[[Evidence], Iterator[Found]]


def at(event: Event, message: str, *, op: str | None = None) -> Found:
    """A finding at the place of an event."""
    return Found(message=message, where=event.where, module=event.module, step=event.step, op=op)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule.

    Attributes:
        id: what reports and ignore lists call it.
        severity: of what it finds, where a finding does not say otherwise.
        remedy: what to change.
        function: yields what it finds; its docstring says why it is a fault.
    """

    id: str
    severity: Severity
    remedy: str
    function: Function


RULES: dict[str, Rule] = {}


def rule(id: str, severity: Severity, *, remedy: str) -> Callable[[Function], Function]:  # noqa: A002 - its name
    """Declare a rule."""

    def declare(function: Function) -> Function:
        if id in RULES:
            raise ValueError(f"two rules are called {id!r}")
        RULES[id] = Rule(id=id, severity=severity, remedy=remedy, function=function)
        return function

    return declare
