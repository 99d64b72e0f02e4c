"""What the rows of the family have in common, the sources that they name, and errors as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from amp_checks.core import Finding, Raised, Value, attempt, exact, first_line
from amp_checks.suite.row import Row

CLASS = "torch.amp.GradScaler"
SCALE = f"{CLASS}.scale"
UNSCALE = f"{CLASS}.unscale_"
STEP = f"{CLASS}.step"
UPDATE = f"{CLASS}.update"
STATE = f"{CLASS}.state_dict, load_state_dict"
ERRORS = f"{CLASS}: the text of its errors"
OBSERVED = "observed on 2.13.0"
EXAMPLES = "torch notes: Automatic Mixed Precision examples"
CAP = "https://github.com/pytorch/pytorch/issues/98828"

NO_ERROR = "no error"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScalerRow(Row):
    """Base of a row.

    Attributes:
        source: where torch makes the promise: documentation, text of an error, an issue, or what was observed.
        behaviours: numbers of `amp_checks.families.scaler.behaviours.BEHAVIOURS` that the row is about.
    """

    family: ClassVar[str] = "scaler"

    id: str
    source: str
    behaviours: tuple[int, ...]

    def exact(self, subject: str, *, actual: Value, expected: Value) -> Finding:
        """A finding on what the row's source promises."""
        return exact(subject, actual=actual, expected=expected, why=self.source)


def error_text(raised: Raised) -> str:
    """``"RuntimeError: first line of its message"``."""
    return f"{type(raised.error).__name__}: {first_line(raised.error)}"


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """`NO_ERROR`, or the text of the error that the code under test raised."""
    try:
        attempt("", function, *args, **kwargs)
    except Raised as raised:
        return error_text(raised)
    return NO_ERROR
