"""Distributed AMP: every planted fault of the family, in one sequence."""

from __future__ import annotations

from amp_checks.families.distributed.mutants import collectives, scalers
from amp_checks.suite.planting import Mutant

MUTANTS: tuple[Mutant, ...] = (*scalers.ROWS, *collectives.ROWS)
