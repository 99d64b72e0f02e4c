"""Audit a user's own training step: run it in FP32 and under AMP, watch everything, say what is wrong and where.

Importing this imports no torch; the names below are loaded when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from amp_checks.audit.command import DESCRIPTION, add_arguments, main

if TYPE_CHECKING:
    from amp_checks.audit.diagnostics import Diagnostic, Severity
    from amp_checks.audit.report import Report, audit
    from amp_checks.audit.training import AuditCase, Training, load

__all__ = [
    "DESCRIPTION",
    "AuditCase",
    "Diagnostic",
    "Report",
    "Severity",
    "Training",
    "add_arguments",
    "audit",
    "load",
    "main",
]

_HOMES = {
    "AuditCase": "training",
    "Diagnostic": "diagnostics",
    "Report": "report",
    "Severity": "diagnostics",
    "Training": "training",
    "audit": "report",
    "load": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
