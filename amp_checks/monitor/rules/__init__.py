"""Rules over time: each a function that looks at the history of a run and yields what it finds.

The one place to add a rule is a function with ``@rule(...)`` in one of this package's modules, and a late fault with
its corrected twin in ``tests/support/late_faults.py``; a test refuses a rule that no fault trips.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from amp_checks.audit.finding import Diagnostic
from amp_checks.monitor.history import History
from amp_checks.monitor.journal import Record

from amp_checks.monitor.rules import scaling, values, ranks  # isort: skip - importing a module registers its rules
from amp_checks.monitor.rules.registry import RULES, Rule

MODULES = (scaling, values, ranks)

__all__ = ["MODULES", "RULES", "Rule", "as_record", "feed", "judged"]


def feed(history: History, record: Record) -> list[Diagnostic]:
    """Take one more record, and give what is found now and was not before."""
    history.add(record)
    found: list[Diagnostic] = []
    for one in RULES.values():
        if one.on != record["kind"]:
            continue
        for each in one.function(history):
            diagnostic = Diagnostic(
                rule=one.id,
                severity=each.severity or one.severity,
                message=each.message,
                remedy=each.remedy or one.remedy,
                where=each.where,
                module=each.module,
                op=each.op,
                step=record["step"] if each.step is None else each.step,
            )
            if not _known(history, diagnostic):
                history.findings.append(diagnostic)
                found.append(diagnostic)
    return found


def _known(history: History, one: Diagnostic) -> bool:
    """One fault is one finding: of a rule and a module, once for each severity."""
    same = (known for known in history.findings if known.rule == one.rule and known.module == one.module)
    return any(known.severity.rank <= one.severity.rank for known in same)


def judged(records: Iterable[Record]) -> History:
    """The history of a run that was recorded."""
    history = History()
    for record in records:
        if record["kind"] in ("step", "sample", "nonfinite"):
            feed(history, record)
    return history


def as_record(one: Diagnostic) -> dict[str, Any]:
    """A finding as plain values."""
    fields = dataclasses.asdict(one)
    return {name: fields[name] for name in ("rule", "severity", "message", "remedy", "where", "module", "op", "step")}
