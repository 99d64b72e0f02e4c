"""Watch a real training from its first step to its last: record what happens, and judge it over time.

Importing this imports no torch; the names below are loaded when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_checks.monitor.recorder import Stopped, Watch, watch

__all__ = ["Stopped", "Watch", "watch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"{__name__}.recorder"), name)
