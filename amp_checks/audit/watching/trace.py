"""What was seen of one training run: events in order, ops, and the state of what was trained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TypeVar

import torch

from amp_checks.audit.case import Training
from amp_checks.audit.places import Place
from amp_checks.audit.watching import readable
from amp_checks.audit.watching.compact import Gradients
from amp_checks.audit.watching.events import Event, LossScaled, RegionEntered, ScalerStep
from amp_checks.audit.watching.magnitudes import Magnitudes

E = TypeVar("E", bound=Event)


@dataclasses.dataclass(slots=True, kw_only=True)
class Op:
    """One op of the first iterations, below autocast.

    Attributes:
        name: ``aten::mm``.
        step: the iteration.
        backward: whether it ran in backward; then module and where are those of the forward op it belongs to.
        inputs, outputs: dtypes of its floating tensors.
        module, where: as of `Event`; ``frame`` is what ``where`` is made of when the run is over.
        function: name of the custom autograd function it ran in, or None.
        elements: of its first output.
        low, high: least and greatest value of a 16-bit output; NaN where unknown.
        magnitudes: sizes of a 16-bit output, in the first iteration; None elsewhere.
        within: in one call of the user's code with ops before it: some forms of attention cast for themselves.
        from_cast: for a cast, the input dtype of another call's cast that its input came straight from; or None.
        region: the innermost autocast region, where that is enabled; None in backward.
        in_place: whether it changes an argument.
    """

    name: str
    step: int
    backward: bool
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    module: str | None
    frame: Place | None
    where: str | None = None
    function: str | None = None
    elements: int = 0
    low: float = math.nan
    high: float = math.nan
    magnitudes: Magnitudes | None = None
    within: bool = False
    from_cast: torch.dtype | None = None
    region: RegionEntered | None = None
    in_place: bool = False

    @property
    def is_cast(self) -> bool:
        return self.name == "aten::_to_copy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The step raised.

    Attributes:
        error: what; ``text``: its type, first line and place.
        step: in which iteration.
        op: the op that raised, or None where it was no op.
        inputs: of that op: one line for each tensor, with dtype, shape and what made it.
        where, module: as of `Event`.
        function: the custom autograd function in whose forward or backward; or None.
    """

    error: BaseException
    text: str
    step: int
    op: str | None
    inputs: tuple[str, ...]
    where: str | None
    module: str | None
    function: str | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class ParameterFacts:
    """What became of one parameter.

    Attributes:
        dtype: of the parameter.
        trained: whether an optimizer has it.
        read_at: the line whose op first read it in forward; "" where that is unknown, None where none did.
        received: whether a backward ever wrote to its gradient.
        pending: whether its gradient at the end is finite; None without one.
        stepped, skipped: real and skipped optimizer steps for which it had a gradient.
        finite: whether it is finite at the end.
        moved: share of its elements that the last real step changed, of those with a gradient; None if never stepped.
    """

    dtype: torch.dtype
    trained: bool = False
    read_at: str | None = None
    received: bool = False
    pending: bool | None = None
    stepped: int = 0
    skipped: int = 0
    finite: bool = True
    moved: float | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Trace:
    """One run.

    Attributes:
        events, ops: in order.
        losses: of each backward: iteration, value without scale.
        gradients: of each parameter, as its optimizer used it at its first real step; float64, unscaled, on the CPU.
        first_real: for each optimizer, how many steps were skipped before its first real one.
        parameters, buffers: by path; buffers give dtype and whether finite at the end.
        scales: loss scale after each update.
        raw_gradients: of the same parameters, what backward gave, without loss scale; only where that is kept.
        modified: names of those whose gradient a fault of the protocol changed before that step.
        bypassed: names of parameters that an optimizer stepped behind the back of a scaler.
        took_overflow: an optimizer stepped with a gradient that is not finite, where that is looked for.
        failure: what it raised, or None.
        optimizers: their class names, in the order in which they were made.
        steps: iterations that ended.
        takes_angles: whether forward took a sine, a cosine or the like.
        restored_scalers: numbers of the scalers that loaded a state.
        buffers_used: of 16-bit buffers, the line whose op first used them; None where that is unknown.
        start: checksums of parameters and batches as they were built (`amp_checks.audit.runs.start`).
        function_products: of each custom autograd function: dtypes of its products in forward and in backward.
        root: class name of the model, where there is one alone; several have names of their own.
        notes: what a report says of the run, by name.
        left_on: device types for which autocast was still on when the run ended.
    """

    events: list[Event] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)
    losses: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    gradients: Gradients = dataclasses.field(default_factory=Gradients)
    first_real: dict[int, int] = dataclasses.field(default_factory=dict)
    parameters: dict[str, ParameterFacts] = dataclasses.field(default_factory=dict)
    buffers: dict[str, tuple[torch.dtype, bool]] = dataclasses.field(default_factory=dict)
    scales: list[float] = dataclasses.field(default_factory=list)
    raw_gradients: Gradients = dataclasses.field(default_factory=Gradients)
    modified: set[str] = dataclasses.field(default_factory=set)
    bypassed: set[str] = dataclasses.field(default_factory=set)
    took_overflow: bool = False
    failure: Failure | None = None
    optimizers: list[str] = dataclasses.field(default_factory=list)
    steps: int = 0
    takes_angles: bool = False
    function_products: dict[str, tuple[set[torch.dtype], set[torch.dtype]]] = dataclasses.field(default_factory=dict)
    root: str = ""
    notes: dict[str, str] = dataclasses.field(default_factory=dict)
    left_on: tuple[str, ...] = ()
    restored_scalers: set[int] = dataclasses.field(default_factory=set)
    buffers_used: dict[str, str | None] = dataclasses.field(default_factory=dict)
    start: dict[str, tuple[torch.dtype, int]] = dataclasses.field(default_factory=dict)

    def read_state(self, training: Training, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Note what became of parameters and buffers."""
        trained = {id(p) for optimizer in optimizers for p in readable.parameters_of(optimizer)}
        for name, parameter in training.named_parameters().items():
            facts = self.parameters.setdefault(name, ParameterFacts(dtype=parameter.dtype))
            facts.trained = id(parameter) in trained
            facts.finite = readable.is_finite(parameter)
        for name, buffer in training.named_buffers().items():
            self.buffers[name] = (buffer.dtype, readable.is_finite(buffer))

    def of(self, kind: type[E]) -> list[E]:
        """The events of that kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def first(self, kind: type[E]) -> E | None:
        """The first event of that kind."""
        return next((event for event in self.events if isinstance(event, kind)), None)

    @property
    def scaled(self) -> bool:
        """Whether an enabled scaler scaled a loss."""
        return self.first(LossScaled) is not None

    @property
    def first_scale(self) -> float | None:
        """The loss scale of the first loss that an enabled scaler scaled."""
        first = self.first(LossScaled)
        return first.scale if first is not None else None

    @property
    def skipped_steps(self) -> list[ScalerStep]:
        """The steps that a scaler skipped."""
        return [event for event in self.of(ScalerStep) if event.skipped]

    @property
    def finite(self) -> bool:
        """Whether the weights are finite at the end."""
        return all(facts.finite for facts in self.parameters.values())

    def low_dtypes(self) -> set[torch.dtype]:
        """The 16-bit dtypes that ops of forward put out."""
        return {dtype for op in self.ops if not op.backward for dtype in op.outputs if dtype.itemsize == 2}
