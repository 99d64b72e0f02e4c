"""Gradient scaling: every planted fault of the family, in one sequence."""

from __future__ import annotations

from amp_checks.mutants import scaler_faults, scaler_kernels, scaler_slips
from amp_checks.mutants.scaler_selftest import edit_every_node
from amp_checks.planting import Mutant

MUTANTS: tuple[Mutant, ...] = (*scaler_faults.ROWS, *scaler_slips.ROWS, *scaler_kernels.ROWS)

BULK = (edit_every_node,)
