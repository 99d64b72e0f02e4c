"""Gradient scaling: which checks apply to which row."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.cases.scaler_calls import ConstructCase, OutputsCase, StoryCase
from amp_checks.cases.scaler_gradients import GradientCase
from amp_checks.cases.scaler_optimizers import OptimizerCase
from amp_checks.cases.scaler_programs import ProgramCase
from amp_checks.checks import (
    scaler_calls,
    scaler_gradients,
    scaler_optimizers,
    scaler_programs,
    scaler_stories,
)
from amp_checks.core import Case, Check


def checks_for(case: Case) -> Iterator[Check]:
    match case:
        case ProgramCase():
            yield from scaler_programs.checks_for(case)
        case OptimizerCase():
            yield from scaler_optimizers.checks_for(case)
        case GradientCase():
            yield from scaler_gradients.checks_for(case)
        case ConstructCase() | OutputsCase():
            yield from scaler_calls.checks_for(case)
        case StoryCase():
            yield from scaler_stories.checks_for(case)
        case _:
            message = f"{case.id!r} is no row of the scaler family"
            raise TypeError(message)
