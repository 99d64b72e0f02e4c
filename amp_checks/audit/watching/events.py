"""What happens in a run: one frozen class for each kind of event, emitted when it is over.

Each begins with its location, which `RunState.here` gives: ``ScalerMade(*state.here(), asked=True, ...)``.
"""

from __future__ import annotations

import dataclasses
from typing import dataclass_transform

import torch


@dataclass_transform(frozen_default=True)
class _Frozen:
    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)


class Event(_Frozen):
    """One thing that happened.

    Attributes:
        step: in which iteration, from 0; -1 while the case was being built.
        where: ``file:line`` of the user's code; None where no frame of it was on the stack.
        module: path of the module whose forward was running, or None.
    """

    step: int
    where: str | None
    module: str | None


class RegionEntered(Event):
    """An autocast region was entered, in the forward or backward of that custom function."""

    device: str
    dtype: torch.dtype
    enabled: bool
    in_backward: bool
    function: str | None


class AutocastSwitchedOn(Event):
    """The program switched autocast on for a device, without a region."""

    device: str


class ModelConverted(Event):
    """The program converted parameters that it trains, that one among them, to a 16-bit dtype."""

    dtype: torch.dtype
    parameter: str


class WeightsRounded(Event):
    """A float32 parameter was overwritten with values of that 16-bit dtype."""

    dtype: torch.dtype
    parameter: str


class StepInAutocast(Event):
    """A region casts what an optimizer's step computes with to that dtype."""

    dtype: torch.dtype


class RegionDisabledItself(Event):
    """An autocast region was made for a device that is not there."""

    device: str


class FunctionApplied(Event):
    """A custom autograd function was applied, in a region of that dtype (None: without autocast)."""

    function: str
    region: torch.dtype | None
    decorated: bool


class ScalerMade(Event):
    """A scaler was made, the how manieth by ``number``, ``asked`` to be enabled or not."""

    asked: bool
    enabled: bool
    device: str
    number: int


class LossScaleRead(Event):
    """The program computes with the loss scale, in that ``function``."""

    function: int


class LossScaled(Event):
    """A scaler scaled a loss, computed in that dtype, which was ``already`` scaled by that factor, or None."""

    dtype: torch.dtype | None
    scale: float
    already: float | None


class Backward(Event):
    """A loss, computed in that dtype and scaled or not, was differentiated, inside an enabled region or not.

    ``onto_unscaled``: the first parameter whose unscaled gradient scaled ones were added to; ``after_update``: the
    first whose gradient was added to after the scaler was updated; or None.
    """

    scaled: bool
    in_region: bool
    dtype: torch.dtype | None
    onto_unscaled: str | None = None
    after_update: str | None = None


class InnerGradientUsed(Event):
    """The gradient that ``autograd.grad`` gave of a scaled loss was used by that op as it is."""

    op: str


class Unscaled(Event):
    """The program unscaled gradients; ``plain_at``: the line that differentiated one of their losses unscaled.

    ``undone_at``: the line at which the program had divided them by the loss scale already.
    """

    plain_at: str | None
    undone_at: str | None = None


class ScalerStep(Event):
    """A scaler stepped an optimizer, by its number, or skipped it; ``carried``: a gradient that was never zeroed.

    ``scale`` is the loss scale that it divided by; ``undone_at``: the line at which the program had already;
    ``updated_at``: the line of an update since the backward; ``other_scale``: a parameter, and the loss scale that its
    gradient was given at a line, by another scaler; ``shared``: a parameter whose gradient was divided for another
    optimizer before; ``closure``: it was given one.
    """

    optimizer: int
    skipped: bool
    enabled: bool
    plain_at: str | None
    carried: str | None
    scale: float
    undone_at: str | None = None
    updated_at: str | None = None
    other_scale: tuple[str, float, str | None] | None = None
    shared: str | None = None
    closure: bool = False


class ScalerUpdated(Event):
    """A scaler was updated; ``stepped``: whether it had stepped an optimizer since its last update."""

    stepped: bool


class OptimizerStep(Event):
    """An optimizer was stepped by the program itself, with gradients some of which were scaled or unscaled.

    ``again``: the line at which a scaler had stepped it with these gradients, or skipped it.
    """

    scaled: bool
    unscaled: bool
    carried: str | None
    again: str | None = None


class ManualLossScale(Event):
    """An optimizer stepped with gradients of a loss that was multiplied by a constant, ``undone`` or not."""

    factor: float
    undone: bool


class SchedulerStep(Event):
    """A scheduler stepped, after so many real and skipped steps of its optimizer."""

    real: int
    skipped: int


class GradientsRead(Event):
    """An op read scaled gradients, in that ``function``."""

    op: str
    function: int = 0


class GradientsCleared(Event):
    """An optimizer is to step with gradients that the program cleared after backward, at this line."""


class ScalerRaised(Event):
    """A method of a scaler raised: the type and text of that."""

    text: str


class IntegersRounded(Event):
    """Integers were cast to 16 bits at this line, a share of them to other ones, and made integers again."""

    dtype: torch.dtype
    share: float


class SumStagnates(Event):
    """A sum was carried through ``count`` additions in 16 bits, and most elements no longer change."""

    op: str
    dtype: torch.dtype
    count: int


class GradientsWritten(Event):
    """An op changed scaled gradients, or ``late``, those that a step was made with."""

    op: str
    late: bool


class WeightsAveraged(Event):
    """An op averaged a parameter after a skipped step."""

    op: str
    parameter: str


class StaleWeightUsed(Event):
    """An op used a 16-bit copy of a parameter that was ``written`` to since, at that line."""

    parameter: str
    written: str | None


class ConstantLost(Event):
    """A constant has another value in the dtype of its op."""

    op: str
    constant: float
    becomes: float
    dtype: torch.dtype


class StateCarried(Event):
    """An op accumulates 16-bit state from step to step."""

    op: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class CheckpointSaved(Event):
    """A checkpoint was saved, with the states of an optimizer and of a scaler or not."""

    optimizer: bool
    scaler: bool


class OverflowHidden(Event):
    """Nothing was left of an injected overflow when a scaler looked, or already ``in_backward``.

    ``hidden_at``: the line of user code that last made finite numbers of infinite ones, or None; ``zero``: whether all
    the gradients are zero.
    """

    hidden_at: str | None
    in_backward: bool = False
    zero: bool = False
