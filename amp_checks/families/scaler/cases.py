"""Gradient scaling: every table of the family, in one sequence."""

from __future__ import annotations

from amp_checks.cases import scaler_calls, scaler_gradients, scaler_optimizers, scaler_programs
from amp_checks.core import Case

CASES: tuple[Case, ...] = (
    *scaler_programs.ROWS,
    *scaler_optimizers.ROWS,
    *scaler_gradients.ROWS,
    *scaler_calls.ROWS,
)
