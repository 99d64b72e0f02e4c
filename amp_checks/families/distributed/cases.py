"""Distributed AMP: every row of the family, in one sequence."""

from __future__ import annotations

from amp_checks.families.distributed import promises  # noqa: F401 - importing it adds the rows
from amp_checks.families.distributed.rows import ROWS, DistributedRow

CASES: tuple[DistributedRow, ...] = tuple(ROWS)
