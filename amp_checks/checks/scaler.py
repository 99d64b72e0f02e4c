"""Gradient scaling: which checks apply to which row."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.cases.scaler_optimizers import OptimizerCase
from amp_checks.cases.scaler_programs import ProgramCase
from amp_checks.checks import scaler_optimizers, scaler_programs
from amp_checks.core import Case, Check


def checks_for(case: Case) -> Iterator[Check]:
    if isinstance(case, ProgramCase):
        yield from scaler_programs.checks_for(case)
    elif isinstance(case, OptimizerCase):
        yield from scaler_optimizers.checks_for(case)
