"""What must hold when a task is trained under AMP: it learns as well as in FP32, and the scaler stays out of
the way.

Training is deterministic, so a run that several checks look at is made once in a process and kept.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from amp_checks.core import Check, Finding, attempt, bounded, exact
from amp_checks.families.convergence.cases import ConvergenceCase
from amp_checks.reference import loop, parity
from amp_checks.reference.loop import Gradients, Task, Trajectory
from amp_checks.reference.memory import bytes_for_backward
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import Threshold, smallest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """A result of a run that is compared over seeds, and the margin of the comparison."""

    of: Callable[[Trajectory], float]
    margin: float = parity.MARGIN


_MEASURES: dict[str, _Measure] = {
    "validation loss": _Measure(of=lambda run: run.after.loss),
    "best validation loss": _Measure(of=lambda run: run.best_loss),
    "area under the training loss": _Measure(of=lambda run: statistics.fmean(run.losses)),
    # A share of right answers moves in whole answers: its noise is coarse.
    "validation metric": _Measure(of=lambda run: run.after.metric, margin=1.0),
}
"""What is compared over seeds: the one place to add a measure."""


def checks_for(case: ConvergenceCase) -> Iterator[Check]:
    yield check_trains_like_fp32
    yield check_learns
    yield check_steps_run
    yield check_first_gradients
    yield check_gradients_survive
    yield check_stays_fp32
    if case.text is not None:
        yield check_says_text
    if case.kept is not None:
        yield check_keeps_less_for_backward


def check_trains_like_fp32(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """Over paired seeds, AMP's results are equivalent to FP32's (see `amp_checks.reference.parity`).

    A row that may skip steps is compared with FP32 runs that leave the same batches out, or no pair would be one.
    """
    seeds = range(case.first_seed, case.first_seed + case.seeds)
    mixed = [_amp(case.task, backend, seed) for seed in seeds]
    full = [
        _fp32(case.task, backend, seed, leave_out=run.skips if _most_skips(case, backend) else frozenset())
        for seed, run in zip(seeds, mixed, strict=True)
    ]
    further = range(seeds.stop, seeds.stop + case.further_fp32)
    unpaired = [_fp32(case.task, backend, seed) for seed in further]
    for name, measure in _MEASURES.items():
        found = parity.compare(
            fp32=[measure.of(run) for run in full],
            amp=[measure.of(run) for run in mixed],
            unpaired=[measure.of(run) for run in unpaired],
            margin=measure.margin,
        )
        yield bounded(
            f"{name}, AMP against FP32",
            ratio=found.ratio,
            threshold=measure.margin,
            actual=found.describe(),
            expected=f"{parity.Verdict.EQUIVALENT} within {measure.margin:g} standard deviations of FP32",
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
    run, most = _amp(case.task, backend, case.first_seed), _most_skips(case, backend)
    yield bounded(
        f"steps skipped of {case.task.steps}",
        actual=len(run.skips),
        expected=f"at most {most}",
        ratio=float(len(run.skips)),
        threshold=most + 0.5,
        why="a skipped step is a batch not learned from; only finding the loss scale may cost a few",
    )
    if not case.task.amp(backend).scaled:
        return
    yield exact(
        "steps skipped, against times the loss scale fell",
        actual=len(run.skips),
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


SIZE_OF_GRADIENTS = Threshold(
    value=0.02,
    unit="departure from 1 of the gradient's length along FP32's, all parameters together",
    healthy="up to 0.002 over all tasks and default backends, torch 2.13.0 on a CPU",
    weakest_mutant="gradients times 0.9: 0.1",
    measured="amp-checks run --family convergence; the mutant gradients-times-0.9",
)
EACH_GRADIENT = Threshold(
    value=0.3,
    unit="norm of the difference from FP32's gradient, over FP32's norm or 1/20 of the whole gradient's if more",
    healthy="up to 0.08 over all tasks and default backends, torch 2.13.0 on a CPU",
    weakest_mutant="one micro-batch of four left unscaled: 0.43 to 0.65",
    measured="amp-checks run --family convergence",
)


def check_first_gradients(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """The gradients with which the first step is taken are FP32's: of that size, and each near to it.

    Unlike the loss, they tell a wrong scale to an optimizer that does not mind it, such as Adam. A ReLU that low
    precision puts on the other side of zero changes single gradients by several percent, but not their size.
    """
    mixed = _amp(case.task, backend, case.first_seed)
    full = _fp32(case.task, backend, case.first_seed, leave_out=_before_first_step(mixed))
    yield exact(
        "parameters with a gradient at the first step taken",
        actual=", ".join(mixed.first_gradients) or "none: no step was taken",
        expected=", ".join(full.first_gradients),
        why="the same parameters as in FP32",
    )
    pairs = {
        name: (gradient.flatten(), full.first_gradients[name].flatten())
        for name, gradient in mixed.first_gradients.items()
        if name in full.first_gradients
    }
    if not pairs:
        return
    together, reference = (torch.cat(side) for side in zip(*pairs.values(), strict=True))
    along = (together @ reference / (reference @ reference)).item()
    yield bounded(
        "length along FP32's gradient",
        actual=along,
        expected=f"1 within {SIZE_OF_GRADIENTS.value:g}",
        ratio=abs(along - 1.0),
        threshold=SIZE_OF_GRADIENTS.value,
        why=SIZE_OF_GRADIENTS.unit,
    )
    # A gradient that is what two large ones leave of each other (the bias of a critic) is all rounding.
    least = 0.05 * reference.norm()
    for name, (gradient, expected) in pairs.items():
        yield bounded(
            f"gradient of {name}",
            ratio=((gradient - expected).norm() / torch.maximum(expected.norm(), least)).item(),
            threshold=EACH_GRADIENT.value,
            why=EACH_GRADIENT.unit,
        )


SURVIVAL = Threshold(
    value=0.02,
    unit="share of the gradients' elements",
    healthy="up to 0.002 over all tasks and default backends, torch 2.13.0 on a CPU",
    weakest_mutant="a loss scale that starts at 512 where 65536 is needed: 0.028",
    measured="amp-checks run --family convergence",
)


def check_gradients_survive(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """Few gradients underflow to zero in the first backward pass; few overflow, unless the row may skip steps."""
    mixed, full = _amp(case.task, backend, case.first_seed), _fp32(case.task, backend, case.first_seed)
    lost = survival(mixed.left_behind, full.left_behind, low=backend.low_dtype)
    yield bounded(
        "share of gradients flushed to zero at the first step",
        ratio=lost.flushed,
        threshold=SURVIVAL.value,
        why="zero, and in FP32 not: what the loss scale is there to prevent",
    )
    if not _most_skips(case, backend):
        yield bounded(
            "share of gradients that overflow at the first step",
            ratio=lost.saturated,
            threshold=SURVIVAL.value,
            why="not finite, and in FP32 finite",
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Shares of the elements of all gradients: zero, or not finite, where FP32's are neither."""

    flushed: float
    saturated: float


TERMS = 2**14
"""A gradient is the sum of up to so many terms, each of which may have underflowed by itself."""


def survival(mixed: Gradients, full: Gradients, *, low: torch.dtype) -> Survival:
    """Compare gradients as backward left them, scaled or not; the scale is read off the two.

    A zero counts only where the gradient is small enough to have underflowed: a unit whose input is rounded across the
    kink of its ReLU has no gradient either, and nothing was flushed there.
    """
    got = torch.cat([mixed[name].flatten() for name in full])
    expected = torch.cat([gradient.flatten() for gradient in full.values()])
    fine = torch.isfinite(expected) & (expected != 0)
    there = fine & torch.isfinite(got) & (got != 0)
    scale = (got[there] / expected[there]).median().abs() if there.any() else torch.tensor(1.0)
    small = expected.abs() * scale < TERMS * smallest(low)
    return Survival(
        flushed=((got == 0) & fine & small).sum().item() / max(1, int(fine.sum())),
        saturated=(~torch.isfinite(got) & fine).sum().item() / max(1, int(fine.sum())),
    )


HELD_EXACTLY = Threshold(
    value=0.5,
    unit="share of values that the low dtype holds exactly",
    healthy="up to 0.05 over all tasks and default backends, torch 2.13.0 on a CPU",
    weakest_mutant="weights, losses or statistics rounded to the low dtype: 1",
    measured="amp-checks run --family convergence; the mutants weights-kept-low, loss-in-low-precision",
)


def check_stays_fp32(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """Loss, weights and statistics are float32, and not float32 in name only.

    A loss or a weight that went through 16 bits can train as well as one that did not, for a while: its bits tell.
    """
    run = _amp(case.task, backend, case.first_seed)
    yield exact(
        "loss dtype", actual=", ".join(run.loss_dtypes), expected="float32", why="loss functions have the policy fp32"
    )
    model = run.learner.model
    statistics_of = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    for name, values in (
        ("losses", [torch.tensor(run.forward_losses)]),
        ("weights after training", list(model.parameters())),
        ("statistics after training", statistics_of),
    ):
        if values:
            yield exact(
                f"{name}: dtype",
                actual=", ".join(sorted({dtype_name(value.dtype) for value in values})),
                expected="float32",
                why="master weights and statistics are kept in float32",
            )
            yield bounded(
                f"{name}: share that {backend.dtype} holds exactly",
                ratio=_held_exactly(values, backend.low_dtype),
                threshold=HELD_EXACTLY.value,
                why="all of them, if they went through the low dtype; few, if they did not",
            )


def _held_exactly(values: Sequence[torch.Tensor], dtype: torch.dtype) -> float:
    flat = torch.cat([value.detach().flatten() for value in values])
    return (flat == flat.to(dtype).to(flat.dtype)).float().mean().item()


def _most_skips(case: ConvergenceCase, backend: Backend) -> int:
    """How many steps may be skipped: none where no loss scale has to be found."""
    return case.most_skips if case.task.amp(backend).scaled else 0


def _before_first_step(run: Trajectory) -> frozenset[int]:
    """The steps that were skipped before the first that was taken."""
    return frozenset(itertools.takewhile(lambda step: step in run.skips, range(len(run.ran))))


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


def check_keeps_less_for_backward(case: ConvergenceCase, backend: Backend) -> Iterator[Finding]:
    """What one forward pass keeps for backward shrinks as 16-bit activations let it."""
    device = "cpu" if backend.emulated else backend.device_type
    full = bytes_for_backward(case.task.build, precision=loop.fp32(device), device=device)
    mixed = bytes_for_backward(case.task.build, precision=case.task.amp(backend), device=backend.device_type)
    yield bounded(
        "bytes kept for backward, AMP over FP32",
        ratio=mixed / full,
        threshold=case.kept or 0.0,
        actual=f"{mixed} of {full}",
        expected=f"below {case.kept:g} of FP32's",
        why="activations in 16 bits take half; norms and losses stay float32, and weights get a 16-bit copy",
    )


def _both(case: ConvergenceCase, backend: Backend) -> Iterator[tuple[str, Trajectory]]:
    yield "FP32", _fp32(case.task, backend, case.first_seed)
    yield "AMP", _amp(case.task, backend, case.first_seed)


def _fp32(task: Task, backend: Backend, seed: int, *, leave_out: frozenset[int] = frozenset()) -> Trajectory:
    # Without a region an emulated device runs the CPU's own kernels: one set of runs serves them all.
    return _fp32_on("cpu" if backend.emulated else backend.device_type, task, seed, leave_out)


# Room for all runs of a gate, in whatever order its items come.
@functools.lru_cache(maxsize=512)
def _fp32_on(device: str, task: Task, seed: int, leave_out: frozenset[int]) -> Trajectory:
    return loop.train(task, precision=loop.fp32(device), device=device, seed=seed, leave_out=leave_out)


# A backend with a fault in it is another backend, so no fault meets the runs of a healthy one.
@functools.lru_cache(maxsize=512)
def _amp(task: Task, backend: Backend, seed: int) -> Trajectory:
    return loop.train(task, precision=task.amp(backend), device=backend.device_type, seed=seed)


def forget_runs() -> None:
    """Drop all runs that are kept: for a fault that does not come in through the backend."""
    _fp32_on.cache_clear()
    _amp.cache_clear()
