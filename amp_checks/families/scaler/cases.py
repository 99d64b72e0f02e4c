"""Gradient scaling: every table of the family, in one sequence."""

from __future__ import annotations

from amp_checks.families.scaler import calls, gradients, programs, stories
from amp_checks.families.scaler.optimizers import cases
from amp_checks.families.scaler.rows import ScalerRow

CASES: tuple[ScalerRow, ...] = (
    *programs.ROWS,
    *cases.ROWS,
    *gradients.ROWS,
    *calls.ROWS,
    *stories.ROWS,
)
