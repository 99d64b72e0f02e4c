"""What a training script does with a gradient scaler, as data: the oracle and the driver both read it.

A program has parameters (tuples of float32 values), optimizers over them, and actions. The loss of a `Backward` is
linear in the parameters, so each gradient element is exactly ``float32(scale * coefficient)``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping

INF = math.inf
NAN = math.nan

Values = tuple[float, ...]


class Kind(enum.StrEnum):
    """How an optimizer takes its scale."""

    PLAIN = "plain"
    """The scaler unscales the gradients, and decides whether to step."""
    SCALING = "scaling"
    """As torch's fused ones: ``_step_supports_amp_scaling``; reads ``grad_scale`` and ``found_inf``, skips itself."""
    SCALER_ARGUMENT = "scaler argument"
    """The deprecated contract: ``step(grad_scaler=...)`` is handed the scaler."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Arguments of the scaler, with names and defaults as in `torch.amp.GradScaler` (but a small scale)."""

    init_scale: float = 8.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """An optimizer over the parameters of those numbers; it steps by ``p -= grad`` and keeps the sum of gradients."""

    parameters: tuple[int, ...] = (0,)
    kind: Kind = Kind.PLAIN


class Action:
    """One call that a training script makes."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Scale(Action):
    """``scaler.scale(loss)`` without a backward."""


@dataclasses.dataclass(frozen=True, slots=True)
class Backward(Action):
    """``scaler.scale(loss).backward()``: parameter number -> coefficient of each of its elements."""

    coefficients: tuple[tuple[int, Values], ...]


def backward(*first: float, **others: Values) -> Backward:
    """``backward(1.0, INF)`` on parameter 0, or ``backward(p0=(1.0,), p1=(NAN, 2.0))``."""
    named = {int(name.removeprefix("p")): values for name, values in others.items()}
    return Backward(tuple(sorted(({0: first} if first else named).items())))


@dataclasses.dataclass(frozen=True, slots=True)
class ZeroGrad(Action):
    """``optimizer.zero_grad()``: gradients become None."""

    optimizer: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class SetGrad(Action):
    """User code writes into a gradient, in place (or makes one)."""

    parameter: int
    values: Values


@dataclasses.dataclass(frozen=True, slots=True)
class Unscale(Action):
    """``scaler.unscale_(optimizer)``."""

    optimizer: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ClipValue(Action):
    """``clip_grad_value_(parameters of the optimizer, bound)``."""

    bound: float
    optimizer: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ClipNorm(Action):
    """``clip_grad_norm_(parameters of the optimizer, bound, norm_type=inf)``."""

    bound: float
    optimizer: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Step(Action):
    """``scaler.step(optimizer)``; ``closure`` adds one by keyword (``"keyword"``, or ``"none"`` for ``closure=None``).

    ``fails`` makes the optimizer's own step raise before it changes anything.
    """

    optimizer: int = 0
    closure: str = ""
    fails: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Update(Action):
    """``scaler.update()`` or ``scaler.update(new_scale)``; ``tensor`` passes it as a 0-dim float32 tensor."""

    new_scale: float | None = None
    tensor: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Set(Action):
    """``scaler.set_<name>(value)``."""

    name: str
    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Save(Action):
    """Keep ``scaler.state_dict()`` for a later `Load`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load(Action):
    """``scaler.load_state_dict(saved)`` into the scaler as it is; with nothing saved, an empty dict."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fresh(Action):
    """A new scaler with the program's settings takes the place of the old one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Copy(Action):
    """The scaler is replaced by ``pickle.loads(pickle.dumps(scaler))``, or by its deepcopy."""

    how: str = "pickle"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole script.

    Attributes:
        actions: what it does, in order.
        settings: the scaler's arguments.
        parameters: initial values, float32.
        optimizers: over which of them.
    """

    actions: tuple[Action, ...]
    settings: Settings = Settings()
    parameters: tuple[Values, ...] = ((1.0, 2.0),)
    optimizers: tuple[OptimizerSpec, ...] = (OptimizerSpec(),)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What can be seen after an action, by public means only.

    Attributes:
        error: ``"none"`` or ``"RuntimeError: first line of its message"``.
        returned: what the action's call returned, where that is promised (`Step`), as text.
        scale: ``get_scale()`` as text.
        tracker: ``state_dict()["_growth_tracker"]``, -1 where the state is empty (disabled).
        steps: how often each optimizer has changed parameters, or would have (its own skips not counted).
        gradients, parameters, states: values as text, so that NaN equals NaN; ``None`` for no gradient.
    """

    error: str
    returned: str
    scale: str
    tracker: int
    steps: tuple[int, ...]
    gradients: tuple[str, ...]
    parameters: tuple[str, ...]
    states: tuple[str, ...]


def text(values: Values | None) -> str:
    """Values as text; float32 values survive the trip exactly."""
    return "None" if values is None else "[" + ", ".join(map(repr, values)) + "]"


def settings_of(settings: Settings) -> Mapping[str, float]:
    """As keyword arguments."""
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
