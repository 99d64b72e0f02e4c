"""amp_checks: is PyTorch's automatic mixed precision right, on this torch, this device, this model?

Public names load on first use: importing the package imports no torch and starts no CUDA.

(PYTEST_DONT_REWRITE: there is no assert to rewrite here, and the command line imports the package before pytest does.)
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Backend": "torch_api.backend",
    "CastPolicy": "core",
    "Finding": "core",
    "NotEmulated": "core",
    "Result": "core",
    "Status": "core",
    "attempt": "core",
    "audit_script": "audit.scripts.front",
    "cases": "families",
    "run": "families",
    "backend": "backends",
    "checks_for": "families",
    "collect": "families",
    "parametrize_with_checks": "families",
    "watch": "monitor",
}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604 - the names are strings, of one table


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        message = f"module 'amp_checks' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"amp_checks.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
