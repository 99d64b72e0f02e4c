"""What was seen of one training run: events in order, ops, and the state of what was trained."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from amp_checks.audit.watching.magnitudes import Magnitudes
from amp_checks.audit.watching.places import Place

if TYPE_CHECKING:
    from amp_checks.audit.case import Training


class Kind(enum.StrEnum):
    """What happened. The comment says what `Event.data` holds."""

    REGION = "an autocast region was entered"  # device, dtype, enabled, cache, depth, in_backward, function
    DISABLED_REGION = "an autocast region disabled itself"  # device
    SCALER = "a scaler was made"  # asked, enabled, device
    SCALE = "a loss was scaled"  # dtype of the loss, scale, already: scale it had
    BACKWARD = "backward"  # scaled, region, dtype, touched, carried, onto_unscaled, after_update
    INNER_GRADIENT = "a scaled inner gradient was used"  # op
    UNSCALE = "gradients were unscaled"  # optimizer, plain_at: line whose loss was not scaled
    SCALER_STEP = "a scaler stepped an optimizer"  # optimizer, skipped, enabled, plain_at, carried
    UPDATE = "a scaler was updated"  # stepped: optimizers since the last update; scale
    OPTIMIZER_STEP = "an optimizer stepped"  # optimizer, direct, scaled, unscaled, depth, carried, missing
    SCALED_BY_HAND = "gradients of a loss that was multiplied by a constant are used"  # factor, undone
    SCHEDULER_STEP = "a scheduler stepped"  # real, skipped: optimizer steps since its last
    GRADIENT_READ = "scaled gradients were read"  # op
    GRADIENT_WRITTEN = "gradients were changed"  # op, late: after their step
    AVERAGED = "weights were averaged after a skipped step"  # op
    STALE_WEIGHT = "an outdated copy of a weight was used"  # parameter, written
    LOST_CONSTANT = "a constant does not exist in the dtype of its op"  # op, constant, becomes, dtype
    CARRIED_STATE = "16-bit state is carried from step to step"  # op, dtype, shape
    FUNCTION = "a custom autograd function ran"  # function, enabled, dtype, decorated
    SAVED = "a checkpoint was saved"  # optimizer, scaler


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: what.
        step: in which iteration, from 0; -1 while the case was being built.
        where: ``file:line`` of the user's code; None where no frame of it was on the stack.
        module: path of the module whose forward was running, or None.
        data: what `Kind` says.
    """

    kind: Kind
    step: int
    where: str | None
    module: str | None
    data: dict[str, Any]


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
        region: dtype of the innermost region, where that is enabled.
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
    region: torch.dtype | None = None
    in_place: bool = False

    @property
    def is_cast(self) -> bool:
        return self.name == "aten::_to_copy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The step raised.

    Attributes:
        error: what.
        step: in which iteration.
        op: the op that raised, or None where it was no op.
        inputs: of that op: one line for each tensor, with dtype, shape and what made it.
        where, module: as of `Event`.
    """

    error: BaseException
    step: int
    op: str | None
    inputs: tuple[str, ...]
    where: str | None
    module: str | None


@dataclasses.dataclass(slots=True, kw_only=True)
class ParameterFacts:
    """What became of one parameter.

    Attributes:
        dtype: of the parameter.
        trained: whether an optimizer has it.
        read: whether an op of forward read it.
        stepped, skipped: real and skipped optimizer steps for which it had a gradient.
        finite: whether it is finite at the end.
        moved: share of its elements that the last real step changed, of those with a gradient; None if never stepped.
    """

    dtype: torch.dtype
    trained: bool = False
    read: bool = False
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
        given: of the same parameters, what backward gave, without loss scale; only where the watch follows it.
        misused: names of those whose gradient a fault of the protocol changed before that step.
        bypassed: names of parameters that an optimizer stepped behind the back of a scaler.
        took_overflow: an optimizer stepped with a gradient that is not finite, where that is looked for.
        failure: what it raised, or None.
        optimizers: their class names, in the order in which they were made.
        steps: iterations that ended.
        takes_angles: whether forward took a sine, a cosine or the like.
        start: checksums of parameters and batches as they were built (`amp_checks.audit.runs.start`).
        function_products: of each custom autograd function: dtypes of its products in forward and in backward.
    first_reads: for each parameter, the line that first read it in forward.
    left_on: device types for which autocast was still on when the run ended.
    """

    events: list[Event] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)
    losses: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    gradients: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    first_real: dict[int, int] = dataclasses.field(default_factory=dict)
    parameters: dict[str, ParameterFacts] = dataclasses.field(default_factory=dict)
    buffers: dict[str, tuple[torch.dtype, bool]] = dataclasses.field(default_factory=dict)
    scales: list[float] = dataclasses.field(default_factory=list)
    given: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    misused: set[str] = dataclasses.field(default_factory=set)
    bypassed: set[str] = dataclasses.field(default_factory=set)
    took_overflow: bool = False
    failure: Failure | None = None
    optimizers: list[str] = dataclasses.field(default_factory=list)
    steps: int = 0
    takes_angles: bool = False
    function_products: dict[str, tuple[frozenset[torch.dtype], frozenset[torch.dtype]]] = dataclasses.field(
        default_factory=dict
    )
    first_reads: dict[str, str | None] = dataclasses.field(default_factory=dict)
    left_on: tuple[str, ...] = ()
    start: dict[str, tuple[torch.dtype, int]] = dataclasses.field(default_factory=dict)

    def read_state(self, training: Training, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Note what became of parameters and buffers."""
        trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in training.named_parameters().items():
            facts = self.parameters.setdefault(name, ParameterFacts(dtype=parameter.dtype))
            facts.trained = id(parameter) in trained
            facts.finite = bool(parameter.isfinite().all())
        for name, buffer in training.named_buffers().items():
            finite = not buffer.is_floating_point() or bool(buffer.isfinite().all())
            self.buffers[name] = (buffer.dtype, finite)

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """The events of these kinds, in order."""
        return (event for event in self.events if event.kind in kinds)

    @property
    def scaled(self) -> bool:
        """Whether an enabled scaler scaled a loss."""
        return next(self.of(Kind.SCALE), None) is not None

    @property
    def scalers_enabled(self) -> bool:
        """Whether any scaler was made that is enabled."""
        return any(event.data["enabled"] for event in self.of(Kind.SCALER))

    def scales_before(self, count: int) -> list[float]:
        """The loss scale at each of the first scaler steps, for a program with one scaler and one step per update."""
        first = next((event.data["scale"] for event in self.of(Kind.SCALE)), 1.0)
        return [first, *self.scales][:count]
