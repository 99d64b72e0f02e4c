"""``unscale_`` and what may follow it, several optimizers, calls in an order that is refused."""

from __future__ import annotations

import functools

from amp_checks.families.scaler.oracle.program import (
    INF,
    NAN,
    ClipNorm,
    ClipValue,
    SetGrad,
    Step,
    Unscale,
    Update,
    ZeroGrad,
    backward,
)
from amp_checks.families.scaler.programs.rows import GOOD, ProgramCase, iteration, script, two_optimizers
from amp_checks.families.scaler.rows import ERRORS, EXAMPLES, STEP, UNSCALE, UPDATE

_BOTH = (Step(0), Step(1), Update())

_changed = functools.partial(ProgramCase, behaviours=(27,))

ROWS: tuple[ProgramCase, ...] = (
    ProgramCase(
        id="unscale-clip-step",
        program=script(
            (backward(4.0, -8.0), Unscale(), ClipNorm(1.0), Step(), Update(), ZeroGrad()),
            (backward(4.0, 0.1), Unscale(), ClipValue(0.5), Step(), Update(), ZeroGrad()),
            (backward(NAN, 0.1), Unscale(), ClipNorm(0.5), Step(), Update()),
        ),
        shows="gradients are unscaled before they are clipped, and once only",
        source=EXAMPLES,
        behaviours=(15, 27),
    ),
    _changed(
        id="broken-after-unscale",
        program=script(GOOD, Unscale(), SetGrad(0, (INF, 1.0)), Step(), Update()),
        shows="what the script does to the gradients after unscale_ is not checked again",
        source=EXAMPLES,
    ),
    _changed(
        id="repaired-after-unscale",
        program=script(backward(INF, 1.0), Unscale(), SetGrad(0, (1.0, 1.0)), Step(), Update()),
        shows="an inf found by unscale_ skips the step whatever becomes of the gradients",
        source=UNSCALE,
    ),
    ProgramCase(
        id="unscale-without-step",
        program=script(GOOD, Unscale(), Update(), ZeroGrad(), backward(INF, 0.0), Unscale(), Update()),
        shows="unscale_ without a step counts as an iteration",
        source=UPDATE,
        behaviours=(39,),
    ),
    ProgramCase(
        id="accumulation",
        program=script(
            (GOOD, backward(0.5, 0.25), Step(), Update(), ZeroGrad()),
            (backward(INF, 0.0), GOOD, Step(), Update(), ZeroGrad()),
            (backward(2e37, 0.0), backward(2e37, 0.0), backward(2e37, 0.0), Step(), Update()),
        ),
        shows="gradients accumulate scaled; one bad part spoils the whole",
        source=EXAMPLES,
        behaviours=(15, 17),
    ),
    ProgramCase(
        id="two-optimizers-one-bad",
        program=two_optimizers(
            (backward(p0=(1.0, INF), p1=(1.0, 1.0)), *_BOTH, ZeroGrad(0), ZeroGrad(1)),
            (backward(p0=(1.0, 1.0), p1=(NAN, 1.0)), *_BOTH, ZeroGrad(0), ZeroGrad(1)),
            (backward(p0=(INF, 1.0), p1=(NAN, 1.0)), *_BOTH, ZeroGrad(0), ZeroGrad(1)),
            (backward(p0=(1.0, 1.0), p1=(1.0, 1.0)), Unscale(1), *_BOTH),
        ),
        shows="each optimizer skips on its own gradients; one update backs off once for all",
        source=EXAMPLES,
        behaviours=(40,),
    ),
    ProgramCase(
        id="two-losses-two-optimizers",
        program=two_optimizers(
            (backward(p0=(1.0, 2.0), p1=(0.5, 0.5)), backward(p0=(0.5, 1.0)), Unscale(0), ClipValue(1.0, 0), *_BOTH)
        ),
        shows="several losses, one scaler; unscale_ of one optimizer leaves the other to step()",
        source=EXAMPLES,
        behaviours=(40, 42),
    ),
    ProgramCase(
        id="optimizer-without-gradients",
        program=two_optimizers(backward(p0=(1.0, 1.0)), *_BOTH, iteration(), Step(1)),
        shows="an optimizer none of whose parameters has a gradient cannot step",
        source=f'{STEP}: "No inf checks were recorded for this optimizer."',
        behaviours=(18,),
    ),
    ProgramCase(
        id="shared-parameter",
        program=two_optimizers(backward(p0=(2.0, 2.0), p1=(1.0, 1.0)), *_BOTH, optimizers=((0,), (0, 1))),
        shows="a parameter of two optimizers is unscaled once, not once for each",
        source=UNSCALE,
        behaviours=(21,),
    ),
    ProgramCase(
        id="before-scale",
        program=script(SetGrad(0, (1.0, 1.0)), Unscale(), Step(), Update(), Update(2.0), iteration()),
        shows="unscale_, step and update refuse to come before the first scale()",
        source=ERRORS,
        behaviours=(13,),
    ),
    ProgramCase(
        id="illegal-order",
        program=script(
            (GOOD, Update(), Unscale(), Unscale(), Step(), Step(), Unscale(), Update(), Update()),
            (Step(), Step(), Update()),
        ),
        shows="unscale_ once and before step, step once, update after a check: else RuntimeError or AssertionError",
        source=UNSCALE,
        behaviours=(14, 26, 34, 42),
    ),
    ProgramCase(
        id="closures",
        program=script(GOOD, Step(closure="keyword"), Step(closure="none"), Step(), Update()),
        shows="a closure, even None, is refused, and the refusal changes nothing",
        source=STEP,
        behaviours=(25,),
    ),
    ProgramCase(
        id="optimizer-raises",
        program=script(GOOD, Step(fails=True), Step(), Update(), iteration()),
        shows="after the optimizer raised, a second try unscales no second time",
        source=UNSCALE,
        behaviours=(28,),
    ),
)
