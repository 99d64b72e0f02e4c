"""Negative controls: which mistake, planted in which task, which check must notice.

A row of `CONTROLS` is a mistake; `applies` says in which tasks it is one. The planted faults of every run are cells of
this matrix; ``benchmarks/convergence_negative_controls.py`` runs the whole of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp_checks.core import Backend
from amp_checks.families.convergence.cases import ConvergenceCase
from amp_checks.families.convergence.mutants import faults

LOSSES = ("mse_loss", "cross_entropy", "binary_cross_entropy_with_logits")


def _scaled(case: ConvergenceCase, backend: Backend) -> bool:
    return case.task.amp(backend).scaled


def _everywhere(_case: ConvergenceCase, _backend: Backend) -> bool:
    return True


def _only(*tasks: str) -> Callable[[ConvergenceCase, Backend], bool]:
    return lambda case, backend: case.id in tasks and _scaled(case, backend)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A mistake that must not pass.

    Attributes:
        id: what tables call it.
        fault: what is wrong, in one clause.
        plant: how it is planted.
        must: the check that must notice wherever it applies.
        why: why that check, where the loss alone may not tell.
        applies: in which tasks, on which backends, it is a mistake at all.
    """

    id: str
    fault: str
    plant: faults.Plant
    must: str
    why: str
    applies: Callable[[ConvergenceCase, Backend], bool] = _everywhere


CONTROLS: tuple[Control, ...] = (
    Control(
        id="gradients-times-0.9",
        fault="every gradient is 0.9 of what it should be",
        plant=faults.with_scaler(faults.GradientsTimes09),
        must="check_first_gradients",
        why="Adam does not mind the size of gradients, and clipping hides it",
    ),
    Control(
        id="unscale-forgotten",
        fault="the optimizer sees gradients that still carry the loss scale",
        plant=faults.with_scaler(faults.UnscaleForgotten),
        must="check_first_gradients",
        why="Adam does not mind the size of gradients, and clipping hides it",
        applies=_scaled,
    ),
    Control(
        id="layer-left-scaled",
        fault="the gradient of one parameter is not unscaled",
        plant=faults.with_scaler(faults.LayerLeftScaled),
        must="check_first_gradients",
        why="Adam does not mind the size of gradients",
        applies=_scaled,
    ),
    Control(
        id="micro-batch-left-unscaled",
        fault="one micro-batch of four is not scaled, and so is lost",
        plant=faults.with_scaler(faults.MicroBatchLeftUnscaled),
        must="check_first_gradients",
        why="three micro-batches of four still learn",
        applies=_only("digits-accumulated-clipped"),
    ),
    Control(
        id="scaler-absent",
        fault="float16 trained without a scaler",
        plant=faults.with_scaler(faults.absent_scaler),
        must="check_steps_run",
        why="where nothing underflows, nothing is lost yet",
        applies=_scaled,
    ),
    Control(
        id="scaler-absent-where-gradients-underflow",
        fault="float16 trained without a scaler",
        plant=faults.with_scaler(faults.absent_scaler),
        must="check_trains_like_fp32",
        why="the loss does not move",
        applies=_only("gradients-underflow"),
    ),
    Control(
        id="steps-on-overflow",
        fault="the optimizer steps on infinite gradients",
        plant=faults.with_scaler(faults.StepsOnOverflow),
        must="check_trains_like_fp32",
        why="weights become NaN",
        applies=_only("gradients-overflow"),
    ),
    Control(
        id="weights-kept-low",
        fault="weights are kept in the low dtype",
        plant=faults.with_scaler(faults.WeightsKeptFloat16, bfloat16=faults.WeightsKeptBFloat16),
        must="check_stays_fp32",
        why="updates that are large enough survive the rounding",
    ),
    Control(
        id="loss-in-low-precision",
        fault="the loss is computed in the low dtype",
        plant=faults.with_region(faults.low_precision_calls(*LOSSES)),
        must="check_stays_fp32",
        why="a loss that is rounded once has nearly the same gradient",
    ),
    Control(
        id="statistics-kept-low",
        fault="batch normalisation keeps its running statistics in the low dtype",
        plant=faults.with_region(faults.low_statistics),
        must="check_stays_fp32",
        why="statistics of a few steps lose little by it",
        applies=lambda case, _: case.id == "digits-cnn",
    ),
    Control(
        id="scale-starts-low",
        fault="the loss scale starts at 512, and some gradients underflow",
        plant=faults.with_scaler(faults.small_scale),
        must="check_gradients_survive",
        why="the gradients that are lost are the smallest",
        applies=_only("gradients-underflow"),
    ),
    Control(
        id="scale-backs-off-always",
        fault="the loss scale backs off after clean steps too",
        plant=faults.with_scaler(faults.BacksOffAlways),
        must="check_steps_run",
        why="where nothing underflows, nothing is lost yet",
        applies=_scaled,
    ),
    Control(
        id="every-tenth-step-skipped",
        fault="every tenth step is skipped for no reason",
        plant=faults.with_scaler(faults.SkipsEveryTenth),
        must="check_steps_run",
        why="nine steps of ten still learn",
    ),
    Control(
        id="every-tenth-step-twice",
        fault="every tenth step is taken twice",
        plant=faults.with_scaler(faults.StepsTwice),
        must="check_trains_like_fp32",
        why="nothing but the result tells",
        applies=lambda case, _: case.id == "reference",
    ),
    Control(
        id="nothing-learned",
        fault="SGD moves no weight, in FP32 and AMP alike",
        plant=faults.in_every_precision(faults.nothing_learned),
        must="check_learns",
        why="AMP trains as well as FP32: not at all",
        applies=lambda case, _: case.id == "digits-mlp",
    ),
    Control(
        id="another-text-taught",
        fault="the model is taught a text with one character changed, in FP32 and AMP alike",
        plant=faults.in_every_precision(faults.another_text),
        must="check_says_text",
        why="it learns that text as well as any other",
        applies=lambda case, _: case.id == "reference",
    ),
    Control(
        id="region-does-nothing",
        fault="the region casts nothing: training goes well, and saves nothing",
        plant=faults.with_region(faults.does_nothing),
        must="check_keeps_less_for_backward",
        why="FP32 trains like FP32",
        applies=lambda case, _: case.kept is not None,
    ),
    Control(
        id="stale-weight-cache",
        fault="one region around the whole loop: the weight cache freezes the weights it sees",
        plant=faults.with_region(faults.keeps_cache),
        must="check_trains_like_fp32",
        why="the forward pass never sees an update",
        # Recomputing a checkpointed layer in backward ends a region of its own, which clears the cache.
        applies=lambda case, _: case.id != "digits-checkpointed",
    ),
)
