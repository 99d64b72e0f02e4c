from __future__ import annotations

import pytest
import torch

from amp_checks import backends, families
from amp_checks.core import Status
from amp_checks.families.convergence import checks
from amp_checks.families.convergence.cases import CASES, ConvergenceCase
from amp_checks.families.convergence.mutants.controls import CONTROLS
from amp_checks.reference import datasets
from amp_checks.reference.loop import Learner, Task, Turn, Validation
from amp_checks.suite import collect
from amp_checks.suite.measure import measure

FLOAT16 = backends.backend("cpu-float16")


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.id)
def test_every_control_applies_somewhere_and_names_a_check_of_its_tasks(control: object) -> None:
    places = [case for case in CASES if control.applies(case, FLOAT16)]  # type: ignore[attr-defined]
    assert places
    for case in places:
        assert control.must in {check.__name__ for check in families.checks_for(case)}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("control", "task"),
    # Cells of the matrix that no planted fault of the gate covers.
    [
        ("gradients-times-0.9", "digits-cnn"),
        ("unscale-forgotten", "digits-accumulated-clipped"),
        ("weights-kept-low", "characters-sparse-embedding"),
        ("loss-in-low-precision", "digits-gan"),
        ("stale-weight-cache", "characters-transformer"),
    ],
)
def test_controls_are_noticed_in_other_tasks_too(control: str, task: str) -> None:
    planted = next(found for found in CONTROLS if found.id == control)
    case = next(found for found in CASES if found.id == task)
    must = next(check for check in families.checks_for(case) if check.__name__ == planted.must)

    assert planted.applies(case, FLOAT16)
    with planted.plant(FLOAT16) as faulty:
        assert measure(must, case, faulty).status is Status.FAILED
    assert measure(must, case, FLOAT16).status is Status.PASSED


def test_survival_counts_what_was_there_in_fp32_only() -> None:
    full = {"w": torch.tensor([1e-9, 0.0, 2.0, 3.0, torch.inf])}
    mixed = {"w": torch.tensor([0.0, 0.0, 2.0, torch.nan, 0.0])}

    # Three of FP32's five are finite and not zero: one is lost, one has become NaN.
    assert checks.survival(mixed, full, low=torch.float16) == checks.Survival(flushed=1 / 3, saturated=1 / 3)


def test_a_zero_that_no_underflow_explains_is_not_flushed() -> None:
    full = {"w": torch.tensor([1e-3, 1e-9, 2e-3, 1e-6])}
    mixed = {"w": torch.tensor([0.0, 0.0, 2.0, 1e-3])}

    # At the scale of 1000 that the others show, 1e-3 is 1.0: its unit is off. 1e-9 is 1e-6: it underflowed.
    assert checks.survival(mixed, full, low=torch.float16) == checks.Survival(flushed=1 / 4, saturated=0.0)
    assert checks.survival(mixed, full, low=torch.bfloat16).flushed == 0.0
    assert checks.survival({"w": torch.zeros(4)}, full, low=torch.float16).flushed == 2 / 4


def test_a_user_adds_a_task_as_a_function_and_a_row() -> None:
    """The example of the README."""

    def build(device: str) -> Learner:
        images, labels = (tensor.to(device) for tensor in datasets.digits())
        model = torch.nn.Linear(64, 10).to(device)
        batches = datasets.Batches(len(images), 64)
        criterion = torch.nn.CrossEntropyLoss()

        def loss(step: int, _micro: int) -> torch.Tensor:
            rows = batches(step).to(device)
            out: torch.Tensor = criterion(model(images[rows]), labels[rows])
            return out

        def validate() -> Validation:
            outputs = model(images)
            right = (outputs.argmax(1) == labels).float().mean().item()
            return Validation(loss=criterion(outputs, labels).item(), metric=right)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return Learner(model=model, turns=(Turn(optimizer=optimizer, loss=loss),), validate=validate)

    mine = ConvergenceCase(task=Task(id="mine", build=build, steps=30), learned=0.5)
    items = list(collect.items_of([mine], [FLOAT16, backends.backend("emulated-cuda-bfloat16")]))

    assert {item.check.__name__ for item in items} >= {"check_trains_like_fp32", "check_learns"}
    for item in items:
        result = measure(item.check, item.case, item.backend)
        assert result.status is Status.PASSED, result.describe()
