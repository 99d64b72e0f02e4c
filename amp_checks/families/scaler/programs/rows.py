"""What a scenario is, and the pieces that scripts are put together from."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from amp_checks.families.scaler.oracle.program import (
    Action,
    Kind,
    OptimizerSpec,
    Program,
    Settings,
    Step,
    Update,
    Values,
    ZeroGrad,
    backward,
)
from amp_checks.families.scaler.rows import ScalerRow


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCase(ScalerRow):
    """A program, and what it is there to show.

    Attributes:
        shows: the promise, in one clause.
    """

    program: Program
    shows: str


GOOD = backward(1.0, -2.0)

Part = Action | tuple[Action, ...]


def script(
    *parts: Part,
    kind: Kind = Kind.PLAIN,
    parameters: tuple[Values, ...] = ((1.0, 2.0),),
    optimizers: tuple[tuple[int, ...], ...] = ((0,),),
    **settings: Any,
) -> Program:
    """A program of actions, or tuples of them.

    Args:
        parts: the actions, in order.
        kind: of the optimizers.
        parameters: initial values.
        optimizers: the numbers of the parameters of each.
        settings: of the scaler, as `Settings` names them.
    """
    return Program(
        actions=tuple(action for part in parts for action in (part if isinstance(part, tuple) else (part,))),
        settings=Settings(**settings),
        parameters=parameters,
        optimizers=tuple(OptimizerSpec(parameters=numbers, kind=kind) for numbers in optimizers),
    )


two_optimizers = functools.partial(script, parameters=((1.0, 2.0), (3.0, -1.0)), optimizers=((0,), (1,)))


def iteration(*coefficients: float) -> tuple[Action, ...]:
    """A whole iteration, on a good gradient where none is given."""
    return (ZeroGrad(), backward(*(coefficients or (1.0, -2.0))), Step(), Update())


def bad(value: float) -> tuple[Action, ...]:
    """A whole iteration with ``value`` in the gradient."""
    return iteration(1.0, value)
