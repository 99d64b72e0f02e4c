"""Gradient scaling: every planted fault of the family, in one sequence."""

from __future__ import annotations

from amp_checks.families.scaler.mutants import faults, kernels, slips
from amp_checks.families.scaler.mutants.every_edit import edit_every_node
from amp_checks.suite.planting import Mutant

MUTANTS: tuple[Mutant, ...] = (*faults.ROWS, *slips.ROWS, *kernels.ROWS)

BULK = (edit_every_node,)
