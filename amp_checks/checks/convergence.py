"""What must hold when a task is trained under AMP: it learns as well as in FP32, and the scaler stays out of
the way.

FP32 runs are kept for the whole process: no backend, real, emulated or faulty, changes them.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator

import torch

from amp_checks.cases.convergence import ConvergenceCase
from amp_checks.core import Backend, Check, Finding, attempt, bounded, exact
from amp_checks.numerics import Threshold
from amp_checks.reference import loop, parity
from amp_checks.reference.loop import Task, Trajectory

_MEASURES: dict[str, Callable[[Trajectory], float]] = {
    "validation loss": lambda run: run.after.loss,
    "area under the training loss": lambda run: statistics.fmean(run.losses),
}
"""What is compared over seeds: the one place to add a measure."""


def checks_for(case: ConvergenceCase) -> Iterator[Check]:
    yield check_trains_like_fp32
    yield check_learns
    yield check_steps_run
    yield check_first_gradients
    if case.text is not None:
        yield check_says_text


def check_trains_like_fp32(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """Over paired seeds, AMP's results are equivalent to FP32's (see `amp_checks.reference.parity`)."""
    pairs = [(_fp32(case.task, backend, seed), _amp(case.task, backend, seed)) for seed in range(case.seeds)]
    for name, measure in _MEASURES.items():
        found = parity.compare(
            fp32=[measure(full) for full, _ in pairs], amp=[measure(mixed) for _, mixed in pairs]
        )
        yield bounded(
            f"{name}, AMP against FP32",
            ratio=found.ratio,
            threshold=parity.MARGIN,
            actual=found.describe(),
            expected=f"{parity.Verdict.EQUIVALENT} within {parity.MARGIN:g} standard deviations of FP32",
            why=f"two one-sided paired t-tests, alpha {parity.ALPHA:g}; too few seeds fail as well",
        )


def check_learns(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """FP32 and AMP both bring the validation loss down to ``case.learned`` of what it was."""
    for name, run in _both(case, backend):
        yield bounded(
            f"validation loss after {name} training over that before",
            ratio=run.after.loss / run.before.loss,
            threshold=case.learned,
            why="a loss that hardly moves means that nothing was learned",
        )


def check_steps_run(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """The scaler skips no more steps than it needs to settle, and is still worth its while at the end."""
    run = _amp(case.task, backend, 0)
    yield bounded(
        f"steps skipped of {case.task.steps}",
        actual=run.skipped,
        expected=f"at most {case.most_skips}",
        ratio=float(run.skipped),
        threshold=case.most_skips + 0.5,
        why="a skipped step is a batch not learned from; only finding the loss scale may cost a few",
    )
    precision = case.task.amp(backend)
    if not precision.scaled:
        return
    yield exact(
        "steps skipped, against times the loss scale fell",
        actual=run.skipped,
        expected=run.backoffs,
        why="torch.amp.GradScaler skips a step and backs off, both or neither",
    )
    scale = run.scales[-1]
    yield bounded(
        "loss scale at the end",
        actual=scale,
        expected="above 1",
        ratio=1.0 / scale if scale > 0.0 else math.inf,
        threshold=1.0,
        why="a scale of 1 or less keeps no small gradient from underflowing",
    )


FIRST_GRADIENTS = Threshold(
    value=8.0,
    unit="eps(low dtype), error of a parameter's gradient over its norm",
    healthy="0.15 to 0.6 on the reference recipe, float16 and bfloat16, torch 2.13.0 on a CPU",
    weakest_mutant="gradients times 0.9: 12.6 in bfloat16 (102 in float16)",
    measured="amp-checks run --family convergence; the mutant gradients-times-0.9",
)


def check_first_gradients(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """The gradients with which the first step is taken are FP32's, within the rounding of the low dtype."""
    full, mixed = _fp32(case.task, backend, 0), _amp(case.task, backend, 0)
    yield exact(
        "first step",
        actual="taken" if mixed.ran[0] else "skipped",
        expected="taken",
        why="gradients are compared where the weights still are the same: at the first step",
    )
    for name, gradient in mixed.first_gradients.items():
        reference = full.first_gradients[name]
        error = (gradient - reference).norm() / reference.norm()
        yield bounded(
            f"gradient of {name} at the first step",
            ratio=error.item() / torch.finfo(backend.low_dtype).eps,
            threshold=FIRST_GRADIENTS.value,
            why=f"norm of the difference from FP32, over FP32's norm, in {FIRST_GRADIENTS.unit}",
        )


def check_says_text(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """The trained model says exactly the text it was taught, in FP32 and under AMP."""
    for name, run in _both(case, backend):
        if run.learner.speak is None:
            message = f"task {case.task.id!r} has a text to say, but its learner does not speak"
            raise TypeError(message)
        with torch.no_grad():
            said = attempt(f"decoding after {name} training", run.learner.speak)
        yield exact(
            f"text said after {name} training",
            actual=repr(said),
            expected=repr(case.text),
            why="the text that it was taught",
        )


def _both(case: ConvergenceCase, backend: Backend) -> Iterator[tuple[str, Trajectory]]:
    yield "FP32", _fp32(case.task, backend, 0)
    yield "AMP", _amp(case.task, backend, 0)


def _fp32(task: Task, backend: Backend, seed: int) -> Trajectory:
    # Without a region an emulated device runs the CPU's own kernels: one set of runs serves them all.
    return _fp32_on("cpu" if backend.emulated else backend.device_type, task, seed)


@functools.lru_cache(maxsize=256)
def _fp32_on(device: str, task: Task, seed: int) -> Trajectory:
    return loop.train(task, precision=loop.fp32(device), device=device, seed=seed)


def _amp(task: Task, backend: Backend, seed: int) -> Trajectory:
    return loop.train(task, precision=task.amp(backend), device=backend.device_type, seed=seed)
