"""Gradient scaling: which checks apply to which row."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.core import Case, Check
from amp_checks.families.scaler import calls, gradients
from amp_checks.families.scaler.calls import ConstructCase, OutputsCase
from amp_checks.families.scaler.gradients import GradientCase
from amp_checks.families.scaler.optimizers import checks as optimizers
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.families.scaler.programs import ProgramCase
from amp_checks.families.scaler.programs import checks as programs
from amp_checks.families.scaler.stories import StoryCase


def checks_for(case: Case) -> Iterator[Check]:
    match case:
        case ProgramCase():
            yield from programs.checks_for(case)
        case OptimizerCase():
            yield from optimizers.checks_for(case)
        case GradientCase():
            yield from gradients.checks_for(case)
        case ConstructCase() | OutputsCase():
            yield from calls.checks_for(case)
        case StoryCase():
            yield case.check
        case _:
            message = f"{case.id!r} is no row of the scaler family"
            raise TypeError(message)
