"""Small steps that checks of single promises share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_checks.core import Backend, Raised, attempt, first_line

NO_ERROR = "no error"


def error_text(raised: Raised) -> str:
    """``"RuntimeError: first line of its message"``."""
    return f"{type(raised.error).__name__}: {first_line(raised.error)}"


def outcome(subject: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """`NO_ERROR`, or the text of the error that the code under test raised."""
    try:
        attempt(subject, function, *args, **kwargs)
    except Raised as raised:
        return error_text(raised)
    return NO_ERROR


def leaf_of(backend: Backend, *values: float) -> torch.Tensor:
    """A float32 leaf that requires a gradient; ``(1.0, 2.0)`` where no values are given."""
    return torch.tensor(values or (1.0, 2.0), device=backend.device_type, requires_grad=True)


def backward(scaler: Any, leaf: torch.Tensor, weight: float = 1.0) -> None:
    """``scaler.scale(loss).backward()`` for a loss whose gradient is ``weight`` everywhere."""
    attempt("scaler.scale", scaler.scale, (leaf * weight).sum()).backward()
