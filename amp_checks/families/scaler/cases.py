"""Gradient scaling: every table of the family, in one sequence."""

from __future__ import annotations

from amp_checks.core import Case
from amp_checks.families.scaler import calls, gradients, programs
from amp_checks.families.scaler.optimizers import cases

CASES: tuple[Case, ...] = (
    *programs.ROWS,
    *cases.ROWS,
    *gradients.ROWS,
    *calls.ROWS,
)
