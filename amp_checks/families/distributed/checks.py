"""Distributed AMP: which checks apply to which row."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.core import Check
from amp_checks.families.distributed.rows import DistributedRow


def checks_for(case: DistributedRow) -> Iterator[Check]:
    yield case.check
