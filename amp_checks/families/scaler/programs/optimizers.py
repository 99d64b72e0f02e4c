"""Optimizers that scale and skip by themselves."""

from __future__ import annotations

import functools

from amp_checks.families.scaler.oracle.program import (
    INF,
    NAN,
    ClipValue,
    Kind,
    Scale,
    SetGrad,
    Step,
    Unscale,
    Update,
    ZeroGrad,
    backward,
)
from amp_checks.families.scaler.programs.rows import GOOD, ProgramCase, bad, iteration, script
from amp_checks.families.scaler.rows import STEP, UPDATE

CONTRACT = f"{STEP}: the comment on _step_supports_amp_scaling"

_scaling = functools.partial(script, kind=Kind.SCALING)

ROWS: tuple[ProgramCase, ...] = (
    ProgramCase(
        id="scaling-optimizer",
        program=_scaling(
            iteration() * 2,
            (ZeroGrad(), backward(4.0, 0.1), Unscale(), ClipValue(0.5), Step(), Update(), ZeroGrad()),
            (backward(INF, 0.1), Unscale(), Step(), Update(), *iteration()),
        ),
        shows="an optimizer with its own scaling is given the scale once, or not at all after unscale_",
        source=CONTRACT,
        behaviours=(23, 29, 32),
    ),
    ProgramCase(
        id="scaling-optimizer-skips",
        program=_scaling(iteration(), bad(INF), Step(), iteration()),
        shows="a skipped step leaves the gradients unscaled, whoever skips",
        source=STEP,
        behaviours=(24, 29),
    ),
    ProgramCase(
        id="scaling-optimizer-repaired-after-unscale",
        program=_scaling(
            (backward(INF, 1.0), Unscale(), SetGrad(0, (1.0, 1.0)), Step(), Update(), ZeroGrad()),
            (GOOD, Unscale(), SetGrad(0, (INF, 1.0)), Step(), Update()),
        ),
        shows="after unscale_ an optimizer with its own scaling goes by what unscale_ found",
        source=CONTRACT,
        behaviours=(27, 29),
    ),
    ProgramCase(
        id="scaling-optimizer-without-gradients",
        program=_scaling(Scale(), Step(), Update()),
        shows="without gradients an optimizer with its own scaling steps; update has nothing to go by",
        source=f'{UPDATE}: "No inf checks were recorded prior to update."',
        behaviours=(31,),
    ),
    ProgramCase(
        id="scaling-optimizer-raises",
        program=_scaling(GOOD, Step(fails=True), Step(), Update(), iteration()),
        shows="grad_scale and found_inf are gone from the optimizer after step, also where it raised",
        source=CONTRACT,
        behaviours=(32,),
    ),
    ProgramCase(
        id="scaler-argument-optimizer",
        program=script(iteration(), bad(NAN), ZeroGrad(), GOOD, Unscale(), Step(), Update(), kind=Kind.SCALER_ARGUMENT),
        shows="an optimizer whose step takes grad_scaler is handed the scaler",
        source=CONTRACT,
        behaviours=(33,),
    ),
)
