"""Gradient scaling: which checks apply to which row."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.core import Case, Check
from amp_checks.families.scaler import call_checks, gradient_checks, program_checks
from amp_checks.families.scaler.calls import ConstructCase, OutputsCase, StoryCase
from amp_checks.families.scaler.gradients import GradientCase
from amp_checks.families.scaler.optimizers import checks
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.families.scaler.programs import ProgramCase
from amp_checks.families.scaler.stories import stories


def checks_for(case: Case) -> Iterator[Check]:
    match case:
        case ProgramCase():
            yield from program_checks.checks_for(case)
        case OptimizerCase():
            yield from checks.checks_for(case)
        case GradientCase():
            yield from gradient_checks.checks_for(case)
        case ConstructCase() | OutputsCase():
            yield from call_checks.checks_for(case)
        case StoryCase():
            yield from stories.checks_for(case)
        case _:
            message = f"{case.id!r} is no row of the scaler family"
            raise TypeError(message)
