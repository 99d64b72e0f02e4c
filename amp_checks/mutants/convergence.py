"""Planted faults of training: each is a mistake people make, and names the checks that must notice."""

from __future__ import annotations

from amp_checks.core import Backend
from amp_checks.mutants import convergence_faults as faults
from amp_checks.planting import Mutant


def _float16(backend: Backend) -> bool:
    return backend.dtype == "float16"


def _bfloat16(backend: Backend) -> bool:
    return backend.dtype == "bfloat16"


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="gradients-times-0.9",
        family="convergence",
        fault="every gradient is 0.9 of what it should be (Adam does not mind)",
        plant=faults.with_scaler(faults.GradientsTimes09),
        case="reference",
        killed_by=("check_first_gradients",),
    ),
    Mutant(
        id="unscale-forgotten",
        family="convergence",
        fault="the optimizer sees gradients that still carry the loss scale (Adam does not mind)",
        plant=faults.with_scaler(faults.UnscaleForgotten),
        case="reference",
        killed_by=("check_first_gradients",),
        applies=_float16,
    ),
    Mutant(
        id="scaler-absent",
        family="convergence",
        fault="float16 trained without a scaler",
        plant=faults.with_scaler(faults.absent_scaler),
        case="reference",
        killed_by=("check_steps_run",),
        applies=_float16,
    ),
    Mutant(
        id="scale-backs-off-always",
        family="convergence",
        fault="the loss scale backs off after clean steps too",
        plant=faults.with_scaler(faults.BacksOffAlways),
        case="reference",
        killed_by=("check_steps_run",),
        applies=_float16,
    ),
    Mutant(
        id="every-tenth-step-skipped",
        family="convergence",
        fault="every tenth step is skipped for no reason",
        plant=faults.with_scaler(faults.SkipsEveryTenth),
        case="reference",
        killed_by=("check_trains_like_fp32", "check_steps_run"),
    ),
    Mutant(
        id="every-tenth-step-twice",
        family="convergence",
        fault="every tenth step is taken twice",
        plant=faults.with_scaler(faults.StepsTwice),
        case="reference",
        killed_by=("check_trains_like_fp32",),
    ),
    Mutant(
        id="weights-kept-in-bfloat16",
        family="convergence",
        fault="weights are kept in bfloat16, so that small updates are lost",
        plant=faults.with_scaler(faults.WeightsKeptBFloat16),
        case="reference",
        killed_by=("check_trains_like_fp32",),
        applies=_bfloat16,
    ),
    Mutant(
        id="stale-weight-cache",
        family="convergence",
        fault="one region around the whole loop: the weight cache freezes the weights it sees",
        plant=faults.with_region(faults.keeps_cache),
        case="reference",
        killed_by=("check_trains_like_fp32",),
    ),
    Mutant(
        id="loss-in-low-precision",
        family="convergence",
        fault="the loss is computed in the low dtype",
        plant=faults.with_region(faults.low_precision_calls("mse_loss")),
        case="reference",
        killed_by=("check_trains_like_fp32", "check_steps_run", "check_first_gradients"),
        applies=_float16,
    ),
)
