"""Planted faults of training: each is a mistake people make, and names the checks that must notice."""

from __future__ import annotations

from collections.abc import Callable

from amp_checks.core import Backend
from amp_checks.mutants import convergence_faults as faults
from amp_checks.planting import Mutant


def _float16(backend: Backend) -> bool:
    return backend.dtype == "float16"


def _bfloat16(backend: Backend) -> bool:
    return backend.dtype == "bfloat16"


GRADIENTS = ("check_first_gradients",)
PARITY = ("check_trains_like_fp32",)


def _row(
    name: str,
    case: str,
    fault: str,
    *,
    plant: faults.Plant,
    killed_by: tuple[str, ...],
    applies: Callable[[Backend], bool] = lambda _: True,
    full: bool = False,
) -> Mutant:
    return Mutant(
        id=f"{name}-{case}",
        family="convergence",
        fault=fault,
        plant=plant,
        case=case,
        killed_by=killed_by,
        applies=applies,
        full=full,
    )


MUTANTS: tuple[Mutant, ...] = (
    _row(
        "gradients-times-0.9",
        "reference",
        "every gradient is 0.9 of what it should be (Adam does not mind)",
        plant=faults.with_scaler(faults.GradientsTimes09),
        killed_by=GRADIENTS,
    ),
    _row(
        "unscale-forgotten",
        "reference",
        "the optimizer sees gradients that still carry the loss scale (Adam does not mind)",
        plant=faults.with_scaler(faults.UnscaleForgotten),
        killed_by=GRADIENTS,
        applies=_float16,
    ),
    _row(
        "layer-left-scaled",
        "reference",
        "the gradient of one parameter is not unscaled (Adam does not mind)",
        plant=faults.with_scaler(faults.LayerLeftScaled),
        killed_by=GRADIENTS,
        applies=_float16,
    ),
    _row(
        "micro-batch-left-unscaled",
        "digits-accumulated-clipped",
        "one micro-batch of four is not scaled, and so is lost",
        plant=faults.with_scaler(faults.MicroBatchLeftUnscaled),
        killed_by=PARITY + GRADIENTS,
        applies=_float16,
    ),
    _row(
        "scaler-absent",
        "reference",
        "float16 trained without a scaler, where nothing underflows",
        plant=faults.with_scaler(faults.absent_scaler),
        killed_by=("check_steps_run",),
        applies=_float16,
    ),
    _row(
        "scaler-absent",
        "gradients-underflow",
        "float16 trained without a scaler, where everything underflows",
        plant=faults.with_scaler(faults.absent_scaler),
        killed_by=(
            "check_trains_like_fp32",
            "check_learns",
            "check_steps_run",
            "check_first_gradients",
            "check_gradients_survive",
        ),
        applies=_float16,
    ),
    _row(
        "scale-starts-low",
        "gradients-underflow",
        "the loss scale starts at 512, and some gradients underflow",
        plant=faults.with_scaler(faults.small_scale),
        killed_by=("check_gradients_survive",),
        applies=_float16,
    ),
    _row(
        "scale-backs-off-always",
        "reference",
        "the loss scale backs off after clean steps too",
        plant=faults.with_scaler(faults.BacksOffAlways),
        killed_by=("check_steps_run",),
        applies=_float16,
    ),
    _row(
        "steps-on-overflow",
        "gradients-overflow",
        "the optimizer steps on infinite gradients",
        plant=faults.with_scaler(faults.StepsOnOverflow),
        killed_by=("check_trains_like_fp32", "check_learns", "check_steps_run", "check_first_gradients"),
        applies=_float16,
    ),
    _row(
        "every-tenth-step-skipped",
        "reference",
        "every tenth step is skipped for no reason",
        plant=faults.with_scaler(faults.SkipsEveryTenth),
        killed_by=("check_trains_like_fp32", "check_steps_run"),
    ),
    _row(
        "every-tenth-step-twice",
        "reference",
        "every tenth step is taken twice",
        plant=faults.with_scaler(faults.StepsTwice),
        killed_by=PARITY,
    ),
    _row(
        "nothing-learned",
        "digits-mlp",
        "the optimizer moves no weight, in FP32 and AMP alike",
        plant=faults.nothing_learned,
        killed_by=("check_learns",),
    ),
    _row(
        "stale-weight-cache",
        "reference",
        "one region around the whole loop: the weight cache freezes the weights it sees",
        plant=faults.with_region(faults.keeps_cache),
        killed_by=PARITY,
    ),
    _row(
        "weights-kept-low",
        "reference",
        "weights are kept in the low dtype, so that small updates are lost",
        plant=faults.with_scaler(faults.WeightsKeptFloat16),
        killed_by=("check_stays_fp32",),
        applies=_float16,
    ),
    _row(
        "weights-kept-low",
        "digits-averaged-weights",
        "weights are kept in the low dtype, so that small updates are lost",
        plant=faults.with_scaler(faults.WeightsKeptBFloat16),
        killed_by=("check_stays_fp32",),
        applies=_bfloat16,
    ),
    _row(
        "region-does-nothing",
        "digits-cnn",
        "the region casts nothing: training goes well, and saves nothing",
        plant=faults.with_region(faults.does_nothing),
        killed_by=("check_keeps_less_for_backward",),
    ),
    _row(
        "loss-in-low-precision",
        "digits-mlp",
        "the loss is computed in the low dtype",
        plant=faults.with_region(faults.low_precision_calls("cross_entropy")),
        killed_by=("check_trains_like_fp32", "check_steps_run", "check_gradients_survive", "check_stays_fp32"),
        applies=_float16,
    ),
    _row(
        "loss-in-low-precision",
        "digits-averaged-weights",
        "the loss is computed in the low dtype",
        plant=faults.with_region(faults.low_precision_calls("cross_entropy")),
        killed_by=("check_stays_fp32",),
        applies=_bfloat16,
    ),
    _row(
        "statistics-kept-low",
        "digits-cnn",
        "batch normalisation keeps its running statistics in the low dtype",
        plant=faults.with_region(faults.low_statistics),
        killed_by=("check_stays_fp32",),
    ),
)
