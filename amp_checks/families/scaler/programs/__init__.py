"""Scenarios: short training scripts. What must be seen after each of their actions is the oracle's to say."""

from amp_checks.families.scaler.programs import optimizers, scale, state, steps
from amp_checks.families.scaler.programs.rows import ProgramCase

__all__ = ["ROWS", "ProgramCase"]

ROWS: tuple[ProgramCase, ...] = (*scale.ROWS, *steps.ROWS, *optimizers.ROWS, *state.ROWS)
