"""Planted faults of training: cells of the matrix of negative controls, with all the checks that notice each.

The mistakes themselves, and which check must notice them, are in `amp_checks.families.convergence.mutants.controls`.
"""

from __future__ import annotations

from amp_checks.families.convergence.cases import CASES
from amp_checks.families.convergence.mutants.controls import CONTROLS
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

PARITY = "check_trains_like_fp32"
LEARNS = "check_learns"
STEPS = "check_steps_run"
GRADIENTS = "check_first_gradients"
SURVIVE = "check_gradients_survive"
STAYS_FP32 = "check_stays_fp32"
SAYS_TEXT = "check_says_text"
KEEPS_LESS = "check_keeps_less_for_backward"

_CONTROLS = {control.id: control for control in CONTROLS}
_CASES = {case.id: case for case in CASES}


def _cell(control: str, case: str, *killed_by: str, dtype: str = "") -> Mutant:
    """A control in a task; ``dtype``: on backends of that low dtype only, where others notice it otherwise."""
    planted = _CONTROLS[control]

    def applies(backend: Backend) -> bool:
        return dtype in {"", backend.dtype} and planted.applies(_CASES[case], backend)

    return Mutant(
        id=f"{control}-{case}" + f"-{dtype}" * bool(dtype),
        family="convergence",
        fault=planted.fault,
        plant=planted.plant,
        case=case,
        killed_by=killed_by,
        applies=applies,
    )


MUTANTS: tuple[Mutant, ...] = (
    _cell("gradients-times-0.9", "reference", GRADIENTS),
    _cell("unscale-forgotten", "reference", GRADIENTS),
    _cell("layer-left-scaled", "reference", GRADIENTS),
    _cell("micro-batch-left-unscaled", "digits-accumulated-clipped", PARITY, GRADIENTS),
    _cell("scaler-absent", "reference", STEPS),
    _cell("scaler-absent-where-gradients-underflow", "gradients-underflow", PARITY, LEARNS, STEPS, GRADIENTS, SURVIVE),
    _cell("scale-starts-low", "gradients-underflow", SURVIVE),
    _cell("scale-backs-off-always", "reference", STEPS),
    _cell("steps-on-overflow", "gradients-overflow", PARITY, LEARNS, STEPS, GRADIENTS),
    _cell("every-tenth-step-skipped", "reference", PARITY, STEPS),
    _cell("every-tenth-step-twice", "reference", PARITY),
    _cell("nothing-learned", "digits-mlp", LEARNS),
    _cell("another-text-taught", "reference", SAYS_TEXT),
    _cell("stale-weight-cache", "reference", PARITY),
    _cell("weights-kept-low", "reference", STAYS_FP32, dtype="float16"),
    _cell("weights-kept-low", "digits-averaged-weights", STAYS_FP32, dtype="bfloat16"),
    _cell("loss-in-low-precision", "digits-mlp", PARITY, STEPS, SURVIVE, STAYS_FP32, dtype="float16"),
    _cell("loss-in-low-precision", "digits-averaged-weights", STAYS_FP32, dtype="bfloat16"),
    _cell("statistics-kept-low", "digits-cnn", STAYS_FP32),
    _cell("region-does-nothing", "digits-cnn", KEEPS_LESS),
)
