"""An audit as a check: one finding for each rule, which fails where the rule found an error."""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_checks.audit.case import AuditCase
from amp_checks.audit.finding import Severity
from amp_checks.audit.report import audit
from amp_checks.audit.rules import RULES
from amp_checks.core import Check, Finding
from amp_checks.torch_api.backend import Backend


def checks_for(case: AuditCase) -> Iterator[Check]:
    del case
    yield check_training_step


_RATIOS = {Severity.ERROR: math.inf, Severity.WARNING: 0.5, Severity.NOTE: 0.0}
"""Errors fail; warnings and notes are shown, and pass."""


def check_training_step(case: AuditCase, backend: Backend) -> Iterator[Finding]:
    """No rule of the audit finds an error in the program."""
    report = audit(case, backend)
    found = {one.rule for one in report.diagnostics}
    for one in report.diagnostics:
        place = f" at {one.place}" if one.place else ""
        yield Finding(
            subject=f"{one.rule}{place}",
            actual=one.message,
            expected="nothing to find",
            ratio=_RATIOS[one.severity],
            threshold=1.0,
            why=f"{one.severity}; remedy: {one.remedy}"
            if one.follows_from is None
            else f"follows from {one.follows_from}",
        )
    for rule in RULES:
        if rule not in found:
            yield Finding(
                subject=rule,
                actual="nothing found",
                expected="nothing to find",
                ratio=0.0,
                threshold=1.0,
                why="a rule of the audit",
            )
