"""Which steps run, and scale and tracker after each: growth, backoff, new scales, the ends of float32."""

from __future__ import annotations

import functools

from amp_checks.families.scaler.oracle.program import INF, NAN, Scale, Set, Step, Update, ZeroGrad, backward
from amp_checks.families.scaler.programs.rows import GOOD, ProgramCase, bad, iteration, script
from amp_checks.families.scaler.rows import CAP, CLASS, OBSERVED, SCALE, STEP, UPDATE

_adapts = functools.partial(ProgramCase, source=UPDATE, behaviours=(35,))
_capped = functools.partial(ProgramCase, source=CAP, behaviours=(36,))
_new_scale = functools.partial(ProgramCase, source=UPDATE, behaviours=(41,))

ROWS: tuple[ProgramCase, ...] = (
    ProgramCase(
        id="clean-steps",
        program=script(iteration() * 3),
        shows="finite gradients: every step runs, the tracker counts, the scale stays",
        source=CLASS,
        behaviours=(5, 8, 15, 23),
    ),
    *(
        ProgramCase(
            id=f"{name}-skips",
            program=script(iteration(), bad(value), iteration(), growth_interval=3),
            shows=f"a gradient of {value}: the step is skipped, the scale backs off, the tracker starts again",
            source=STEP,
            behaviours=(17, 24, 35),
        )
        for name, value in (("inf", INF), ("minus-inf", -INF), ("nan", NAN), ("overflow", 3e38))
    ),
    _adapts(
        id="growth",
        program=script(iteration() * 4, growth_interval=2),
        shows="the scale grows after growth_interval consecutive unskipped iterations",
    ),
    _adapts(
        id="growth-once",
        program=script(iteration() * 2, growth_interval=2, growth_factor=4.0),
        shows="the scale grows by growth_factor, and the tracker starts again",
    ),
    _adapts(
        id="growth-every-step",
        program=script(iteration() * 3, growth_interval=1, growth_factor=3.0),
        shows="growth_interval 1 grows every time, by growth_factor",
    ),
    *(
        ProgramCase(
            id=f"interval-{interval}-never-grows",
            program=script(iteration() * 2, growth_interval=interval),
            shows="a growth_interval that no count reaches is accepted and never grows",
            source=f"{OBSERVED}: growth_interval is not checked",
            behaviours=(3, 35),
        )
        for interval in (0, -1)
    ),
    _adapts(
        id="backoff-resets-tracker",
        program=script(iteration(), bad(INF), growth_interval=3),
        shows="iterations must be consecutive to count: a skip starts the count again",
    ),
    _adapts(
        id="skips-in-a-row",
        program=script(bad(INF) * 3, backoff_factor=0.25),
        shows="each skip multiplies the scale by backoff_factor",
    ),
    _capped(
        id="growth-is-capped",
        program=script(iteration(1e-30, 0.0) * 3, init_scale=2.0**126, growth_interval=1),
        shows="a scale that would not be finite does not grow",
    ),
    _capped(
        id="growth-is-capped-by-a-large-factor",
        program=script(iteration(1e-30, 0.0) * 2, init_scale=2.0**126, growth_interval=1, growth_factor=1e30),
        shows="a scale that would not be finite does not grow, however far beyond",
    ),
    ProgramCase(
        id="scale-not-a-power-of-two",
        program=script(iteration(0.3, -7.0) * 2, init_scale=0.1, growth_interval=1),
        shows="the scale is a float32 number from the first scale() on; unscaling rounds once",
        source=CLASS,
        behaviours=(5, 15),
    ),
    ProgramCase(
        id="zero-gradients",
        program=script(iteration(0.0, -0.0) * 2),
        shows="an all-zero gradient is a clean one",
        source=STEP,
        behaviours=(17,),
    ),
    ProgramCase(
        id="subnormal-gradients",
        program=script(iteration(1e-44, -1e-40) * 2),
        shows="subnormal gradients survive scaling and unscaling",
        source=SCALE,
        behaviours=(15,),
    ),
    ProgramCase(
        id="new-scale",
        program=script(iteration(), ZeroGrad(), GOOD, Step(), Update(128.0), iteration()),
        shows="update(new_scale) sets the scale and leaves the tracker",
        source=UPDATE,
        behaviours=(41, 42),
    ),
    _new_scale(
        id="new-scale-tensor",
        program=script(iteration(), ZeroGrad(), GOOD, Step(), Update(128.0, tensor=True), iteration()),
        shows="new_scale may be a tensor, copied by value",
    ),
    _new_scale(
        id="new-scale-after-skip",
        program=script(iteration(), ZeroGrad(), backward(INF, 0.0), Step(), Update(4.0), iteration()),
        shows="new_scale is used as it is, inf found or not",
    ),
    _new_scale(
        id="new-scale-without-step",
        program=script(Scale(), Update(4.0), iteration(), Update(NAN), Update(0.0), Update(-2.0)),
        shows="new_scale needs no step, and is not checked",
    ),
    ProgramCase(
        id="setters",
        program=script(
            (Set("growth_factor", 4.0), Set("backoff_factor", 0.125), Set("growth_interval", 2)),
            (*iteration() * 2, *bad(NAN)),
            (Set("growth_factor", 0.5), Set("backoff_factor", 3.0)),
            (*iteration() * 2, *bad(INF)),
        ),
        shows="factors and interval can be set at any time, and are not checked",
        source=f"{CLASS}.set_growth_factor and its like",
        behaviours=(46,),
    ),
    ProgramCase(
        id="interval-lowered-below-tracker",
        program=script(iteration() * 3, Set("growth_interval", 2), iteration()),
        shows="the scale grows once growth_interval unskipped iterations occurred consecutively, whenever it was set",
        source=UPDATE,
        behaviours=(38,),
    ),
    ProgramCase(
        id="inverse-scale-overflows",
        program=script(Scale(), Update(2.0**-130), iteration(1.0, 3.0)),
        shows="a step whose gradients become inf by unscaling is skipped",
        source=STEP,
        behaviours=(20,),
    ),
    ProgramCase(
        id="scale-falls-to-zero",
        program=script(bad(INF) * 5, iteration(), init_scale=65536.0, backoff_factor=2.0**-40),
        shows="a scale that has fallen to 0 makes no step that writes NaN",
        source=STEP,
        behaviours=(20, 37),
    ),
    ProgramCase(
        id="scale-falls-to-zero-by-halves",
        program=script(bad(INF) * 166, iteration(), init_scale=65536.0),
        shows="the defaults fall to 0 after 166 skips; the step after that must not write NaN",
        source=STEP,
        behaviours=(20, 37),
        full=True,
    ),
)
