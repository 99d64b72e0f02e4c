from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

from amp_checks import backends
from amp_checks.core import Status
from amp_checks.families.convergence import checks
from amp_checks.families.convergence.cases import CASES, ConvergenceCase
from amp_checks.reference.loop import Learner, Task, Turn, Validation
from amp_checks.reference.recipes import REFERENCE
from amp_checks.suite.measure import measure

CPU = backends.backend("cpu-float16")


def reference(**changes: object) -> ConvergenceCase:
    case = next(case for case in CASES if case.id == "reference")
    return dataclasses.replace(case, **changes)  # type: ignore[arg-type]


def with_loss(change: Callable[[torch.Tensor], torch.Tensor]) -> ConvergenceCase:
    """The reference task with another loss, in FP32 and AMP alike."""

    def build(device: str) -> Learner:
        learner = REFERENCE.build(device)
        (turn,) = learner.turns

        def loss(step: int, micro: int) -> torch.Tensor:
            return change(turn.loss(step, micro))

        def validate() -> Validation:
            found = learner.validate()
            return Validation(loss=change(torch.tensor(found.loss)).item(), metric=found.metric)

        return dataclasses.replace(learner, turns=(Turn(optimizer=turn.optimizer, loss=loss),), validate=validate)

    return reference(task=Task(id="changed", build=build, steps=3), seeds=3)


def test_curves_that_are_nan_in_both_precisions_fail() -> None:
    result = measure(checks.check_trains_like_fp32, with_loss(lambda loss: loss * math.nan), CPU)

    assert result.status is Status.FAILED
    assert [finding.subject for finding in result.failures] == [
        "validation loss, AMP against FP32",
        "best validation loss, AMP against FP32",
        "area under the training loss, AMP against FP32",
    ]
    assert all(str(finding.actual).startswith("not finite") for finding in result.failures)


def test_a_loss_that_is_nan_after_training_is_not_learning() -> None:
    result = measure(checks.check_learns, with_loss(lambda loss: loss * math.nan), CPU)

    assert len(result.failures) == 2


def test_a_loss_that_never_moves_is_not_learning() -> None:
    result = measure(checks.check_learns, with_loss(lambda loss: loss * 0.0 + 1.0), CPU)

    assert [finding.ratio for finding in result.failures] == [1.0, 1.0]


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_are_no_pass(seeds: int) -> None:
    result = measure(checks.check_trains_like_fp32, reference(seeds=seeds), CPU)

    assert result.status is Status.FAILED
    assert str(result.failures[0].actual).startswith("not enough seeds to tell")


def test_a_text_task_that_does_not_speak_is_an_error_of_the_table() -> None:
    def build(device: str) -> Learner:
        return dataclasses.replace(REFERENCE.build(device), speak=None)

    mute = reference(task=Task(id="mute", build=build, steps=1))
    result = measure(checks.check_says_text, mute, CPU)

    assert result.status is Status.ERROR
    assert "'mute' has a text to say, but its learner does not speak" in result.message


def test_a_wrong_text_fails_and_is_shown() -> None:
    result = measure(checks.check_says_text, reference(text="中野哲半"), CPU)

    assert [finding.actual for finding in result.failures] == ["'中野哲平'", "'中野哲平'"]
