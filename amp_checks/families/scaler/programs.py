"""Scenarios: short training scripts. What must be seen after each of their actions is the oracle's to say.

``behaviours`` are numbers of the list in ``docs/scaler-behaviours.md``.
"""

from __future__ import annotations

import dataclasses

from amp_checks.core import Backend
from amp_checks.families.scaler.oracle.program import (
    INF,
    NAN,
    Action,
    ClipNorm,
    ClipValue,
    Copy,
    Fresh,
    Kind,
    Load,
    OptimizerSpec,
    Program,
    Save,
    Scale,
    Set,
    SetGrad,
    Settings,
    Step,
    Unscale,
    Update,
    ZeroGrad,
    backward,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCase:
    """A program, and what it is there to show.

    Attributes:
        shows: the promise, in one clause.
        source: where torch makes it.
    """

    id: str
    program: Program
    shows: str
    source: str
    behaviours: tuple[int, ...]
    family: str = "scaler"
    full: bool = False

    def runs_on(self, _: Backend) -> bool:
        return True


STEP = "torch.amp.GradScaler.step"
UNSCALE = "torch.amp.GradScaler.unscale_"
UPDATE = "torch.amp.GradScaler.update"
SCALE = "torch.amp.GradScaler.scale"
CLASS = "torch.amp.GradScaler"
STATE = "torch.amp.GradScaler.state_dict, load_state_dict"
EXAMPLES = "torch notes: Automatic Mixed Precision examples"
CONTRACT = "torch.amp.GradScaler.step: the comment on _step_supports_amp_scaling"

GOOD = backward(1.0, -2.0)
TWO = (OptimizerSpec(parameters=(0,)), OptimizerSpec(parameters=(1,)))
TWO_PARAMETERS = ((1.0, 2.0), (3.0, -1.0))


def _iteration(*coefficients: float) -> tuple[Action, ...]:
    return (ZeroGrad(), backward(*(coefficients or (1.0, -2.0))), Step(), Update())


def _bad(value: float) -> tuple[Action, ...]:
    return _iteration(1.0, value)


def _kind(kind: Kind) -> tuple[OptimizerSpec, ...]:
    return (OptimizerSpec(kind=kind),)


ROWS: tuple[ProgramCase, ...] = (
    # -- which steps run, scale and tracker after each -----------------------------------------------------------------
    ProgramCase(
        id="clean-steps",
        program=Program(actions=_iteration() * 3),
        shows="finite gradients: every step runs, the tracker counts, the scale stays",
        source=CLASS,
        behaviours=(5, 8, 15, 23),
    ),
    *(
        ProgramCase(
            id=f"{name}-skips",
            program=Program(actions=(*_iteration(), *_bad(value), *_iteration()), settings=Settings(growth_interval=3)),
            shows=f"a gradient of {value}: the step is skipped, the scale backs off, the tracker starts again",
            source=STEP,
            behaviours=(17, 24, 35),
        )
        for name, value in (("inf", INF), ("minus-inf", -INF), ("nan", NAN), ("overflow", 3e38))
    ),
    ProgramCase(
        id="growth",
        program=Program(actions=_iteration() * 4, settings=Settings(growth_interval=2)),
        shows="the scale grows after growth_interval consecutive unskipped iterations",
        source=UPDATE,
        behaviours=(35,),
    ),
    ProgramCase(
        id="growth-once",
        program=Program(actions=_iteration() * 2, settings=Settings(growth_interval=2, growth_factor=4.0)),
        shows="the scale grows by growth_factor, and the tracker starts again",
        source=UPDATE,
        behaviours=(35,),
    ),
    ProgramCase(
        id="growth-every-step",
        program=Program(actions=_iteration() * 3, settings=Settings(growth_interval=1, growth_factor=3.0)),
        shows="growth_interval 1 grows every time, by growth_factor",
        source=UPDATE,
        behaviours=(35,),
    ),
    *(
        ProgramCase(
            id=f"interval-{interval}-never-grows",
            program=Program(actions=_iteration() * 2, settings=Settings(growth_interval=interval)),
            shows="a growth_interval that no count reaches is accepted and never grows",
            source="observed on 2.13.0: growth_interval is not checked",
            behaviours=(3, 35),
        )
        for interval in (0, -1)
    ),
    ProgramCase(
        id="backoff-resets-tracker",
        program=Program(actions=(*_iteration(), *_bad(INF)), settings=Settings(growth_interval=3)),
        shows="iterations must be consecutive to count: a skip starts the count again",
        source=UPDATE,
        behaviours=(35,),
    ),
    ProgramCase(
        id="skips-in-a-row",
        program=Program(actions=_bad(INF) * 3, settings=Settings(backoff_factor=0.25)),
        shows="each skip multiplies the scale by backoff_factor",
        source=UPDATE,
        behaviours=(35,),
    ),
    ProgramCase(
        id="growth-is-capped",
        program=Program(
            actions=(ZeroGrad(), backward(1e-30, 0.0), Step(), Update()) * 3,
            settings=Settings(init_scale=2.0**126, growth_interval=1),
        ),
        shows="a scale that would not be finite does not grow",
        source="https://github.com/pytorch/pytorch/issues/98828",
        behaviours=(36,),
    ),
    ProgramCase(
        id="growth-is-capped-by-a-large-factor",
        program=Program(
            actions=(ZeroGrad(), backward(1e-30, 0.0), Step(), Update()) * 2,
            settings=Settings(init_scale=2.0**126, growth_interval=1, growth_factor=1e30),
        ),
        shows="a scale that would not be finite does not grow, however far beyond",
        source="https://github.com/pytorch/pytorch/issues/98828",
        behaviours=(36,),
    ),
    ProgramCase(
        id="scale-not-a-power-of-two",
        program=Program(actions=_iteration(0.3, -7.0) * 2, settings=Settings(init_scale=0.1, growth_interval=1)),
        shows="the scale is a float32 number from the first scale() on; unscaling rounds once",
        source=CLASS,
        behaviours=(5, 15),
    ),
    ProgramCase(
        id="zero-gradients",
        program=Program(actions=_iteration(0.0, -0.0) * 2),
        shows="an all-zero gradient is a clean one",
        source=STEP,
        behaviours=(17,),
    ),
    ProgramCase(
        id="subnormal-gradients",
        program=Program(actions=_iteration(1e-44, -1e-40) * 2),
        shows="subnormal gradients survive scaling and unscaling",
        source=SCALE,
        behaviours=(15,),
    ),
    # -- new_scale, setters --------------------------------------------------------------------------------------------
    ProgramCase(
        id="new-scale",
        program=Program(actions=(*_iteration(), ZeroGrad(), GOOD, Step(), Update(128.0), *_iteration())),
        shows="update(new_scale) sets the scale and leaves the tracker",
        source=UPDATE,
        behaviours=(41, 42),
    ),
    ProgramCase(
        id="new-scale-tensor",
        program=Program(actions=(*_iteration(), ZeroGrad(), GOOD, Step(), Update(128.0, tensor=True), *_iteration())),
        shows="new_scale may be a tensor, copied by value",
        source=UPDATE,
        behaviours=(41,),
    ),
    ProgramCase(
        id="new-scale-after-skip",
        program=Program(actions=(*_iteration(), ZeroGrad(), backward(INF, 0.0), Step(), Update(4.0), *_iteration())),
        shows="new_scale is used as it is, inf found or not",
        source=UPDATE,
        behaviours=(41,),
    ),
    ProgramCase(
        id="new-scale-without-step",
        program=Program(actions=(Scale(), Update(4.0), *_iteration(), Update(NAN), Update(0.0), Update(-2.0))),
        shows="new_scale needs no step, and is not checked",
        source=UPDATE,
        behaviours=(41,),
    ),
    ProgramCase(
        id="setters",
        program=Program(
            actions=(
                Set("growth_factor", 4.0),
                Set("backoff_factor", 0.125),
                Set("growth_interval", 2),
                *_iteration() * 2,
                *_bad(NAN),
                Set("growth_factor", 0.5),
                Set("backoff_factor", 3.0),
                *_iteration() * 2,
                *_bad(INF),
            )
        ),
        shows="factors and interval can be set at any time, and are not checked",
        source="torch.amp.GradScaler.set_growth_factor and its like",
        behaviours=(46,),
    ),
    ProgramCase(
        id="interval-lowered-below-tracker",
        program=Program(actions=(*_iteration() * 3, Set("growth_interval", 2), *_iteration())),
        shows="the scale grows once growth_interval unskipped iterations occurred consecutively, whenever it was set",
        source=UPDATE,
        behaviours=(38,),
    ),
    # -- unscale_ and what may follow it -------------------------------------------------------------------------------
    ProgramCase(
        id="unscale-clip-step",
        program=Program(
            actions=(
                *(backward(4.0, -8.0), Unscale(), ClipNorm(1.0), Step(), Update(), ZeroGrad()),
                *(backward(4.0, 0.1), Unscale(), ClipValue(0.5), Step(), Update(), ZeroGrad()),
                *(backward(NAN, 0.1), Unscale(), ClipNorm(0.5), Step(), Update()),
            )
        ),
        shows="gradients are unscaled before they are clipped, and once only",
        source=EXAMPLES,
        behaviours=(15, 27),
    ),
    ProgramCase(
        id="broken-after-unscale",
        program=Program(actions=(GOOD, Unscale(), SetGrad(0, (INF, 1.0)), Step(), Update())),
        shows="what the script does to the gradients after unscale_ is not checked again",
        source=EXAMPLES,
        behaviours=(27,),
    ),
    ProgramCase(
        id="repaired-after-unscale",
        program=Program(actions=(backward(INF, 1.0), Unscale(), SetGrad(0, (1.0, 1.0)), Step(), Update())),
        shows="an inf found by unscale_ skips the step whatever becomes of the gradients",
        source=UNSCALE,
        behaviours=(27,),
    ),
    ProgramCase(
        id="unscale-without-step",
        program=Program(actions=(GOOD, Unscale(), Update(), ZeroGrad(), backward(INF, 0.0), Unscale(), Update())),
        shows="unscale_ without a step counts as an iteration",
        source=UPDATE,
        behaviours=(39,),
    ),
    ProgramCase(
        id="accumulation",
        program=Program(
            actions=(
                *(GOOD, backward(0.5, 0.25), Step(), Update(), ZeroGrad()),
                *(backward(INF, 0.0), GOOD, Step(), Update(), ZeroGrad()),
                *(backward(2e37, 0.0), backward(2e37, 0.0), backward(2e37, 0.0), Step(), Update()),
            )
        ),
        shows="gradients accumulate scaled; one bad part spoils the whole",
        source=EXAMPLES,
        behaviours=(15, 17),
    ),
    # -- several optimizers --------------------------------------------------------------------------------------------
    ProgramCase(
        id="two-optimizers-one-bad",
        program=Program(
            actions=(
                *(
                    backward(p0=(1.0, INF), p1=(1.0, 1.0)),
                    Step(0),
                    Step(1),
                    Update(),
                    ZeroGrad(0),
                    ZeroGrad(1),
                ),
                *(
                    backward(p0=(1.0, 1.0), p1=(NAN, 1.0)),
                    Step(0),
                    Step(1),
                    Update(),
                    ZeroGrad(0),
                    ZeroGrad(1),
                ),
                *(
                    backward(p0=(INF, 1.0), p1=(NAN, 1.0)),
                    Step(0),
                    Step(1),
                    Update(),
                    ZeroGrad(0),
                    ZeroGrad(1),
                ),
                *(backward(p0=(1.0, 1.0), p1=(1.0, 1.0)), Unscale(1), Step(0), Step(1), Update()),
            ),
            parameters=TWO_PARAMETERS,
            optimizers=TWO,
        ),
        shows="each optimizer skips on its own gradients; one update backs off once for all",
        source=EXAMPLES,
        behaviours=(40,),
    ),
    ProgramCase(
        id="two-losses-two-optimizers",
        program=Program(
            actions=(
                *(backward(p0=(1.0, 2.0), p1=(0.5, 0.5)), backward(p0=(0.5, 1.0)), Unscale(0)),
                *(ClipValue(1.0, 0), Step(0), Step(1), Update()),
            ),
            parameters=TWO_PARAMETERS,
            optimizers=TWO,
        ),
        shows="several losses, one scaler; unscale_ of one optimizer leaves the other to step()",
        source=EXAMPLES,
        behaviours=(40, 42),
    ),
    ProgramCase(
        id="optimizer-without-gradients",
        program=Program(
            actions=(backward(p0=(1.0, 1.0)), Step(0), Step(1), Update(), *_iteration(), Step(1)),
            parameters=TWO_PARAMETERS,
            optimizers=TWO,
        ),
        shows="an optimizer none of whose parameters has a gradient cannot step",
        source='torch.amp.GradScaler.step: "No inf checks were recorded for this optimizer."',
        behaviours=(18,),
    ),
    ProgramCase(
        id="shared-parameter",
        program=Program(
            actions=(backward(p0=(2.0, 2.0), p1=(1.0, 1.0)), Step(0), Step(1), Update()),
            parameters=TWO_PARAMETERS,
            optimizers=(OptimizerSpec(parameters=(0,)), OptimizerSpec(parameters=(0, 1))),
        ),
        shows="a parameter of two optimizers is unscaled once, not once for each",
        source=UNSCALE,
        behaviours=(21,),
    ),
    # -- illegal order -------------------------------------------------------------------------------------------------
    ProgramCase(
        id="before-scale",
        program=Program(actions=(SetGrad(0, (1.0, 1.0)), Unscale(), Step(), Update(), Update(2.0), *_iteration())),
        shows="unscale_, step and update refuse to come before the first scale()",
        source="torch.amp.GradScaler: the text of its errors",
        behaviours=(13,),
    ),
    ProgramCase(
        id="illegal-order",
        program=Program(
            actions=(
                *(GOOD, Update(), Unscale(), Unscale(), Step(), Step(), Unscale(), Update(), Update()),
                *(Step(), Step(), Update()),
            )
        ),
        shows="unscale_ once and before step, step once, update after a check: else RuntimeError or AssertionError",
        source=UNSCALE,
        behaviours=(14, 26, 34, 42),
    ),
    ProgramCase(
        id="closures",
        program=Program(
            actions=(GOOD, Step(closure="keyword"), Step(closure="none"), Step(), Update()),
        ),
        shows="a closure, even None, is refused, and the refusal changes nothing",
        source=STEP,
        behaviours=(25,),
    ),
    ProgramCase(
        id="optimizer-raises",
        program=Program(actions=(GOOD, Step(fails=True), Step(), Update(), *_iteration())),
        shows="after the optimizer raised, a second try unscales no second time",
        source=UNSCALE,
        behaviours=(28,),
    ),
    # -- optimizers that scale and skip by themselves ------------------------------------------------------------------
    ProgramCase(
        id="scaling-optimizer",
        program=Program(
            actions=(
                *_iteration() * 2,
                *(ZeroGrad(), backward(4.0, 0.1), Unscale(), ClipValue(0.5), Step(), Update(), ZeroGrad()),
                *(backward(INF, 0.1), Unscale(), Step(), Update(), *_iteration()),
            ),
            optimizers=_kind(Kind.SCALING),
        ),
        shows="an optimizer with its own scaling is told the scale once, or not at all after unscale_",
        source=CONTRACT,
        behaviours=(23, 29, 32),
    ),
    ProgramCase(
        id="scaling-optimizer-skips",
        program=Program(actions=(*_iteration(), *_bad(INF), Step(), *_iteration()), optimizers=_kind(Kind.SCALING)),
        shows="a skipped step leaves the gradients unscaled, whoever skips",
        source=STEP,
        behaviours=(24, 29),
    ),
    ProgramCase(
        id="scaling-optimizer-repaired-after-unscale",
        program=Program(
            actions=(
                *(backward(INF, 1.0), Unscale(), SetGrad(0, (1.0, 1.0)), Step(), Update(), ZeroGrad()),
                *(GOOD, Unscale(), SetGrad(0, (INF, 1.0)), Step(), Update()),
            ),
            optimizers=_kind(Kind.SCALING),
        ),
        shows="after unscale_ an optimizer with its own scaling goes by what unscale_ found",
        source=CONTRACT,
        behaviours=(27, 29),
    ),
    ProgramCase(
        id="scaling-optimizer-without-gradients",
        program=Program(actions=(Scale(), Step(), Update()), optimizers=_kind(Kind.SCALING)),
        shows="without gradients an optimizer with its own scaling steps; update has nothing to go by",
        source='torch.amp.GradScaler.update: "No inf checks were recorded prior to update."',
        behaviours=(31,),
    ),
    ProgramCase(
        id="scaling-optimizer-raises",
        program=Program(
            actions=(GOOD, Step(fails=True), Step(), Update(), *_iteration()), optimizers=_kind(Kind.SCALING)
        ),
        shows="grad_scale and found_inf are gone from the optimizer after step, also where it raised",
        source=CONTRACT,
        behaviours=(32,),
    ),
    ProgramCase(
        id="scaler-argument-optimizer",
        program=Program(
            actions=(*_iteration(), *_bad(NAN), ZeroGrad(), GOOD, Unscale(), Step(), Update()),
            optimizers=_kind(Kind.SCALER_ARGUMENT),
        ),
        shows="an optimizer whose step takes grad_scaler is handed the scaler",
        source=CONTRACT,
        behaviours=(33,),
    ),
    # -- scales at the ends of float32 ---------------------------------------------------------------------------------
    ProgramCase(
        id="inverse-scale-overflows",
        program=Program(
            actions=(Scale(), Update(2.0**-130), ZeroGrad(), backward(1.0, 3.0), Step(), Update()),
        ),
        shows="a step whose gradients become inf by unscaling is skipped",
        source=STEP,
        behaviours=(20,),
    ),
    ProgramCase(
        id="scale-falls-to-zero",
        program=Program(
            actions=(*_bad(INF) * 5, *_iteration()),
            settings=Settings(init_scale=65536.0, backoff_factor=2.0**-40),
        ),
        shows="a scale that has fallen to 0 makes no step that writes NaN",
        source=STEP,
        behaviours=(20, 37),
    ),
    ProgramCase(
        id="scale-falls-to-zero-by-halves",
        program=Program(actions=(*_bad(INF) * 166, *_iteration()), settings=Settings(init_scale=65536.0)),
        shows="the defaults fall to 0 after 166 skips; the step after that must not write NaN",
        source=STEP,
        behaviours=(20, 37),
        full=True,
    ),
    # -- state ---------------------------------------------------------------------------------------------------------
    ProgramCase(
        id="load-into-live",
        program=Program(
            actions=(*_iteration(), Save(), *_iteration(), *_bad(INF), Load(), *_iteration() * 2),
            settings=Settings(growth_interval=3),
        ),
        shows="load_state_dict brings scale and tracker back to where they were saved",
        source=STATE,
        behaviours=(44,),
    ),
    ProgramCase(
        id="load-into-new",
        program=Program(
            actions=(*_bad(INF), *_iteration() * 9, Save(), Fresh(), Load(), *_iteration() * 2),
            settings=Settings(growth_interval=10),
        ),
        shows="a new scaler that loads the state grows on the step on which the old one would have",
        source=STATE,
        behaviours=(44,),
    ),
    ProgramCase(
        id="load-empty",
        program=Program(actions=(Load(), *_iteration())),
        shows="an empty state is refused",
        source=STATE,
        behaviours=(44,),
    ),
    ProgramCase(
        id="load-within-iteration",
        program=Program(actions=(Scale(), Save(), GOOD, Unscale(), Load(), Unscale(), Step(), Update())),
        shows="loading does not end the iteration",
        source="observed on 2.13.0: load_state_dict leaves the stages of the optimizers",
        behaviours=(44,),
    ),
    *(
        ProgramCase(
            id=f"{how}-between-iterations",
            program=Program(
                actions=(*_iteration(), *_bad(INF), *_iteration(), Copy(how), Update(), *_iteration() * 2),
                settings=Settings(growth_interval=2),
            ),
            shows="a copied scaler has the scale and the tracker of the original",
            source="torch.amp.GradScaler: the text of its pickling error",
            behaviours=(45,),
        )
        for how in ("pickle", "deepcopy")
    ),
    *(
        ProgramCase(
            id=f"{how}-within-iteration",
            program=Program(actions=(GOOD, Unscale(), Copy(how), Step(), Copy(how), Update(), Copy(how))),
            shows="a scaler is copied between iterations only",
            source="torch.amp.GradScaler: the text of its pickling error",
            behaviours=(45,),
        )
        for how in ("pickle", "deepcopy")
    ),
    # -- disabled ------------------------------------------------------------------------------------------------------
    ProgramCase(
        id="disabled",
        program=Program(
            actions=(
                *(
                    Unscale(),
                    Update(),
                    Update(3.0),
                    Load(),
                    GOOD,
                    Unscale(),
                    Unscale(),
                    Step(),
                    Step(),
                    Save(),
                    Load(),
                ),
                *(Copy(), Set("growth_factor", 3.0), *_bad(INF)),
            ),
            settings=Settings(enabled=False),
        ),
        shows="disabled: step() steps, all else does nothing",
        source=CLASS,
        behaviours=(11, 43),
    ),
    ProgramCase(
        id="disabled-closure",
        program=Program(actions=(GOOD, Step(closure="keyword")), settings=Settings(enabled=False)),
        shows="disabled: a closure goes through to the optimizer",
        source=CLASS,
        behaviours=(25, 43),
    ),
)
