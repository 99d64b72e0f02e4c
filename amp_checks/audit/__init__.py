"""Audit a user's own training step: run it in FP32 and under AMP, watch everything, say what is wrong and where.

Importing this imports no torch; the names below are loaded when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_checks.audit.case import AuditCase, Training, load
    from amp_checks.audit.finding import Diagnostic, Severity
    from amp_checks.audit.frameworks import lightning, trainer
    from amp_checks.audit.report import Report, audit

__all__ = ["AuditCase", "Diagnostic", "Report", "Severity", "Training", "audit", "lightning", "load", "trainer"]

_HOMES = {
    "AuditCase": "case",
    "Diagnostic": "finding",
    "Report": "report",
    "Severity": "finding",
    "Training": "case",
    "audit": "report",
    "lightning": "frameworks",
    "load": "case",
    "trainer": "frameworks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
