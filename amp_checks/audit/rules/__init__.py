"""The rules: each a function that looks at the evidence of an audit and yields what it finds.

The one place to add a rule is a function with ``@rule(...)`` in one of this package's modules, and a pair of fixtures
(a faulty loop, its corrected twin) in ``fixtures/audit``; the tests refuse a rule that no fixture trips.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Diagnostic, Found

from amp_checks.audit.rules import (  # isort: skip - importing a module registers its rules, in this order
    errors,
    protocol,
    steps,
    overflows,
    scaler,
    regions,
    finite,
    precision,
    dtypes,
    state,
)
from amp_checks.audit.rules.registry import RULES, Rule

MODULES = (errors, protocol, steps, overflows, scaler, regions, finite, precision, dtypes, state)

__all__ = ["IDS", "MODULES", "RULES", "Rule", "in_order", "judge", "judging"]

IDS = frozenset(RULES) | {row.rule for row in errors.KNOWN} | {"training-differs"}
"""Every id that a finding may have: of rules, of known exceptions of torch, of the comparison over seeds."""


def judge(evidence: Evidence, *, rules: Iterable[Rule] | None = None) -> list[Diagnostic]:
    """Every rule on the evidence, in the order of reports."""
    return in_order(judging(evidence, rules=rules))


def judging(evidence: Evidence, *, rules: Iterable[Rule] | None = None) -> Iterator[Diagnostic]:
    """What the rules find, one after the other."""
    for rule in RULES.values() if rules is None else rules:
        for one in _once(rule.function(evidence)):
            yield Diagnostic(
                rule=one.rule or rule.id,
                severity=one.severity or rule.severity,
                message=one.message,
                remedy=one.remedy or rule.remedy,
                where=one.where,
                module=one.module,
                op=one.op,
                step=one.step,
            )


def in_order(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Errors first, then warnings and notes, each in the order of the program."""
    return sorted(found, key=lambda one: (one.severity.rank, one.step if one.step is not None else 1 << 30))


def _once(found: Iterator[Found]) -> Iterator[Found]:
    """A fault in a loop is one fault: the first of those at the same place."""
    seen = set()
    for one in found:
        key = (
            one.rule,
            one.where.partition(" (")[0] if one.where else None,  # in a library, whoever called it
            one.module if one.where is None else None,
            one.op,
            one.message if one.where is None else "",
        )
        if key not in seen:
            seen.add(key)
            yield one
