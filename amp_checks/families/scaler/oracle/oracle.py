"""The specification of gradient scaling as a state machine in plain Python, independent of torch's code.

Each rule names its source: *doc* is the documentation of `torch.amp.GradScaler` (the class and its methods), *notes*
the pages "Automatic Mixed Precision examples" and "package", *text* the message that torch gives. Arithmetic is
float32: a product, sum or quotient of two float32 numbers computed in float64 and rounded once more is the correctly
rounded float32 result, since 53 >= 2 * 24 + 2.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
from collections.abc import Callable
from typing import ClassVar

from amp_checks.families.scaler.oracle import program as prog
from amp_checks.families.scaler.oracle.program import Kind, Observation, Program, Values

FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127


def f32(value: float) -> float:
    """Round to float32, overflow to infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _times(left: float, right: float) -> float:
    return f32(left * right)


class Stage(enum.Enum):
    """The stage of an optimizer in the iteration (doc of ``unscale_``: once per optimizer per step; before step)."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class Departure(enum.StrEnum):
    """A promise that released torch breaks. With it the oracle does as torch does; without it, as promised."""

    CHECK_BEFORE_MULTIPLY = "gradients are checked before, not after, they are multiplied by the inverse scale"
    GROWTH_NEEDS_EQUALITY = "the scale grows only when the tracker equals the interval, not when it exceeds it"
    SHARED_UNSCALED_TWICE = "a parameter of two optimizers is unscaled twice"
    SKIPPED_FUSED_STAYS_SCALED = "a skipped step of an optimizer with its own scaling leaves the gradients scaled"
    RAISED_FUSED_LEAKS_SCALE = "an optimizer with its own scaling whose step raises keeps grad_scale and found_inf"


AS_RELEASED: frozenset[Departure] = frozenset(Departure)
AS_PROMISED: frozenset[Departure] = frozenset()


class Refused(Exception):
    """The call is illegal; ``kind`` is the exception's type name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")


_FIX = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."


@dataclasses.dataclass(slots=True)
class _Optimizer:
    spec: prog.OptimizerSpec
    sums: dict[int, Values]
    steps: int = 0
    stage: Stage = Stage.READY
    found_inf: bool | None = None
    """None: no check was recorded in this iteration."""
    touched: bool = False
    """The scaler has seen it in this iteration."""
    leaks: bool = False
    """A step that scales by itself raised, and left ``grad_scale`` (= ``leaked``) on it."""
    leaked: float | None = None


@dataclasses.dataclass(slots=True)
class Oracle:
    """One run of a program. Drive it with `do`; read it with `observe`."""

    program: Program
    departures: frozenset[Departure] = AS_PROMISED
    enabled: bool = dataclasses.field(init=False)
    scale: float = dataclasses.field(init=False)
    growth_factor: float = dataclasses.field(init=False)
    backoff_factor: float = dataclasses.field(init=False)
    growth_interval: int = dataclasses.field(init=False)
    tracker: int = dataclasses.field(init=False)
    started: bool = dataclasses.field(init=False)
    parameters: list[Values] = dataclasses.field(init=False)
    gradients: list[Values | None] = dataclasses.field(init=False)
    optimizers: list[_Optimizer] = dataclasses.field(init=False)
    unscaled: set[int] = dataclasses.field(init=False)
    saved: dict[str, float] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.parameters = [tuple(map(f32, values)) for values in self.program.parameters]
        self.gradients = [None] * len(self.parameters)
        self.optimizers = [
            _Optimizer(spec, {number: (0.0,) * len(self.parameters[number]) for number in spec.parameters})
            for spec in self.program.optimizers
        ]
        self.saved = {}
        self._fresh(prog.Fresh())

    def _fresh(self, _: prog.Fresh) -> None:
        settings = self.program.settings
        self.enabled = settings.enabled
        self.scale = settings.init_scale
        self.growth_factor = settings.growth_factor
        self.backoff_factor = settings.backoff_factor
        self.growth_interval = settings.growth_interval
        self.tracker = 0
        self.started = False
        self._new_iteration()

    def _new_iteration(self) -> None:
        """doc of ``update``: called at the end of the iteration; every optimizer may be unscaled and stepped again."""
        self.unscaled = set()
        for optimizer in self.optimizers:
            optimizer.stage = Stage.READY
            optimizer.found_inf = None
            optimizer.touched = False

    # -- what is seen ------------------------------------------------------------------------------------------------

    def observe(self, error: str, returned: str) -> Observation:
        return Observation(
            error=error,
            returned=returned,
            scale=repr(self.scale if self.enabled else 1.0),
            tracker=self.tracker if self.enabled else -1,
            steps=tuple(optimizer.steps for optimizer in self.optimizers),
            gradients=tuple(map(prog.text, self.gradients)),
            parameters=tuple(map(prog.text, self.parameters)),
            states=tuple(prog.text(values) for optimizer in self.optimizers for values in optimizer.sums.values()),
        )

    def do(self, action: prog.Action) -> Observation:
        """Carry out one action, legal or not."""
        error, returned = "none", "None"
        try:
            answer = self.RULES[type(action)](self, action)
        except Refused as refused:
            error = str(refused)
        else:
            returned = repr(answer)
        return self.observe(error, returned)

    # -- rules -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """doc of ``init_scale``; the scale is a float32 number from the first ``scale`` on."""
        if self.enabled and not self.started:
            self.scale = f32(self.scale)
            self.started = True

    def _require_start(self, call: str) -> None:
        if not self.started:
            raise Refused("AssertionError", f"Attempted {call} but _scale is None.  {_FIX}")

    def _scale(self, _: prog.Scale) -> None:
        self._start()

    def _backward(self, action: prog.Backward) -> None:
        """doc of ``scale``: multiplies by the scale factor; autograd accumulates into ``.grad``."""
        self._start()
        factor = self.scale if self.enabled else 1.0
        for number, coefficients in action.coefficients:
            new = tuple(_times(factor, f32(coefficient)) for coefficient in coefficients)
            old = self.gradients[number]
            self.gradients[number] = new if old is None else tuple(f32(a + b) for a, b in zip(old, new, strict=True))

    def _zero_grad(self, action: prog.ZeroGrad) -> None:
        for number in self.optimizers[action.optimizer].spec.parameters:
            self.gradients[number] = None
            self.unscaled.discard(number)

    def _set_grad(self, action: prog.SetGrad) -> None:
        self.gradients[action.parameter] = tuple(map(f32, action.values))

    def _held(self, optimizer: _Optimizer) -> list[tuple[int, Values]]:
        """The gradients of an optimizer; parameters without one are passed over."""
        found = ((number, self.gradients[number]) for number in optimizer.spec.parameters)
        return [(number, values) for number, values in found if values is not None]

    def _clip_value(self, action: prog.ClipValue) -> None:
        for number, values in self._held(self.optimizers[action.optimizer]):
            bound = f32(action.bound)
            self.gradients[number] = tuple(v if math.isnan(v) else min(max(v, -bound), bound) for v in values)

    def _clip_norm(self, action: prog.ClipNorm) -> None:
        """doc of ``clip_grad_norm_``: multiply by ``bound / (norm + 1e-6)`` where that is below 1."""
        held = self._held(self.optimizers[action.optimizer])
        sizes = [abs(v) for _, values in held for v in values]
        if not sizes:
            return
        norm = math.nan if any(map(math.isnan, sizes)) else max(sizes)
        coefficient = _times(f32(1.0 / f32(norm + f32(1e-6))), f32(action.bound))
        coefficient = coefficient if math.isnan(coefficient) else min(coefficient, 1.0)
        for number, values in held:
            self.gradients[number] = tuple(_times(v, coefficient) for v in values)

    def _inverse(self) -> float:
        """The reciprocal is taken in float64 and rounded once (a comment in the source gives the reason)."""
        return f32(1.0 / self.scale) if self.scale else math.copysign(math.inf, self.scale)

    def _unscale(self, action: prog.Unscale) -> None:
        if self.enabled:
            self._do_unscale(self.optimizers[action.optimizer])

    def _do_unscale(self, optimizer: _Optimizer) -> None:
        """doc of ``unscale_``: divides the gradients by the scale, once per optimizer per step, before ``step``."""
        self._require_start("unscale_")
        optimizer.touched = True
        if optimizer.stage is Stage.UNSCALED:
            raise Refused(
                "RuntimeError",
                "unscale_() has already been called on this optimizer since the last update().",
            )
        if optimizer.stage is Stage.STEPPED:
            raise Refused("RuntimeError", "unscale_() is being called after step().")
        optimizer.found_inf = self._divide(optimizer)
        optimizer.stage = Stage.UNSCALED

    def _divide(self, optimizer: _Optimizer) -> bool | None:
        """Unscale in place; say whether a gradient is inf or NaN. None where there is none to look at."""
        held = self._held(optimizer)
        found = False
        for number, values in held:
            again = number in self.unscaled and Departure.SHARED_UNSCALED_TWICE not in self.departures
            factor = 1.0 if again else self._inverse()
            after = tuple(_times(v, factor) for v in values)
            checked = values if Departure.CHECK_BEFORE_MULTIPLY in self.departures else values + after
            found = found or not all(map(math.isfinite, checked))
            self.gradients[number] = after
            self.unscaled.add(number)
        return found if held else None

    def _step(self, action: prog.Step) -> float | None:
        """doc of ``step``: unscale unless done; step if no gradient is inf or NaN; give back what the step gave."""
        optimizer = self.optimizers[action.optimizer]
        if not self.enabled:
            return self._optimizer_step(optimizer, fails=action.fails)
        if action.closure:
            raise Refused("RuntimeError", "Closure use is not currently supported if GradScaler is enabled.")
        self._require_start("step")
        optimizer.touched = True
        if optimizer.stage is Stage.STEPPED:
            raise Refused("RuntimeError", "step() has already been called since the last update().")
        answer = {
            Kind.PLAIN: self._step_plain,
            Kind.SCALING: self._step_scaling,
            Kind.SCALER_ARGUMENT: self._step_scaler_argument,
        }[optimizer.spec.kind](optimizer, fails=action.fails)
        optimizer.stage = Stage.STEPPED
        return answer

    def _step_plain(self, optimizer: _Optimizer, *, fails: bool) -> float | None:
        if optimizer.stage is Stage.READY:
            self._do_unscale(optimizer)
        if optimizer.found_inf is None:
            raise Refused("AssertionError", "No inf checks were recorded for this optimizer.")
        # notes: what clipping or other code does to the gradients after unscale_ is not looked at again.
        return None if optimizer.found_inf else self._optimizer_step(optimizer, fails=fails)

    def _step_scaling(self, optimizer: _Optimizer, *, fails: bool) -> float | None:
        """The contract of optimizers with ``_step_supports_amp_scaling`` (a comment in the source of ``step``)."""
        unscale_inside = optimizer.stage is Stage.READY
        held = self._held(optimizer)
        if unscale_inside:
            optimizer.found_inf = not all(math.isfinite(v) for _, values in held for v in values) if held else None
        factor = self._factor_of(optimizer) if unscale_inside else optimizer.leaked
        if fails:
            if Departure.RAISED_FUSED_LEAKS_SCALE in self.departures:
                optimizer.leaks, optimizer.leaked = True, factor
            raise Refused("ArithmeticError", "the optimizer fails")
        optimizer.leaks, optimizer.leaked = False, None
        if optimizer.found_inf:
            if unscale_inside and Departure.SKIPPED_FUSED_STAYS_SCALED not in self.departures:
                self._divide(optimizer)
            return None
        if factor is not None:
            for number, values in held:
                self.gradients[number] = tuple(_over(v, factor) for v in values)
        return self._optimizer_step(optimizer, fails=False)

    def _factor_of(self, optimizer: _Optimizer) -> float:
        """By what the optimizer must divide: the scale, times a ``grad_scale`` that was already on it."""
        if not optimizer.leaks:
            return self.scale
        if optimizer.leaked is None:
            raise Refused("TypeError", "unsupported operand type(s) for *: 'Tensor' and 'NoneType'")
        return _times(self.scale, optimizer.leaked)

    def _step_scaler_argument(self, optimizer: _Optimizer, *, fails: bool) -> float | None:
        """The optimizer is handed the scaler; ours calls its ``unscale_``, looks at the gradients, and steps or not."""
        self._do_unscale(optimizer)
        finite = all(math.isfinite(v) for _, values in self._held(optimizer) for v in values)
        return self._optimizer_step(optimizer, fails=fails) if finite else None

    def _optimizer_step(self, optimizer: _Optimizer, *, fails: bool) -> float:
        if fails:
            raise Refused("ArithmeticError", "the optimizer fails")
        for number, values in self._held(optimizer):
            pairs = zip(self.parameters[number], values, strict=True)
            self.parameters[number] = tuple(f32(p - g) for p, g in pairs)
            optimizer.sums[number] = tuple(f32(s + g) for s, g in zip(optimizer.sums[number], values, strict=True))
        optimizer.steps += 1
        return float(optimizer.steps)

    def _update(self, action: prog.Update) -> None:
        """doc of ``update``, and of ``growth_factor``, ``backoff_factor``, ``growth_interval``."""
        if not self.enabled:
            return
        self._require_start("update")
        if action.new_scale is not None:
            self.scale = f32(action.new_scale)
        else:
            found = [optimizer.found_inf for optimizer in self.optimizers if optimizer.found_inf is not None]
            if not found:
                raise Refused("AssertionError", "No inf checks were recorded prior to update.")
            self._adapt(found_inf=any(found))
        self._new_iteration()

    def _adapt(self, *, found_inf: bool) -> None:
        if found_inf:
            self.scale = f32(self.scale * self.backoff_factor)
            self.tracker = 0
            return
        self.tracker += 1
        due = self.tracker == self.growth_interval
        if Departure.GROWTH_NEEDS_EQUALITY not in self.departures and self.growth_interval > 0:
            due = self.tracker >= self.growth_interval
        if due:
            # A scale that would not be finite is kept: growth must not turn every gradient into inf.
            grown = f32(self.scale * self.growth_factor)
            self.scale = grown if math.isfinite(grown) else self.scale
            self.tracker = 0

    def _set(self, action: prog.Set) -> None:
        setattr(self, action.name, action.value)

    def _save(self, _: prog.Save) -> None:
        """doc of ``state_dict``: five entries, none where disabled."""
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "tracker")
        self.saved = {name: getattr(self, name) for name in names} if self.enabled else {}

    def _load(self, _: prog.Load) -> None:
        """doc of ``load_state_dict``: a no-op where disabled; stages of the running iteration are not part of it."""
        if not self.enabled:
            return
        if not self.saved:
            message = "The source state dict is empty, possibly because it was saved from a disabled instance of "
            raise Refused("RuntimeError", message + "GradScaler.")
        for name, value in self.saved.items():
            setattr(self, name, value)
        self.scale = f32(self.scale) if self.started else self.scale

    def _copy(self, _: prog.Copy) -> None:
        """text: pickled between iterations only; scale and tracker survive, the tensors are made again when needed."""
        if self.enabled and any(optimizer.touched for optimizer in self.optimizers):
            message = "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
            raise Refused("AssertionError", message + "scaler.update().")
        self.started = False

    RULES: ClassVar[dict[type[prog.Action], Callable[..., float | None]]] = {
        prog.Scale: _scale,
        prog.Backward: _backward,
        prog.ZeroGrad: _zero_grad,
        prog.SetGrad: _set_grad,
        prog.Unscale: _unscale,
        prog.ClipValue: _clip_value,
        prog.ClipNorm: _clip_norm,
        prog.Step: _step,
        prog.Update: _update,
        prog.Set: _set,
        prog.Save: _save,
        prog.Load: _load,
        prog.Fresh: _fresh,
        prog.Copy: _copy,
    }


def _over(left: float, right: float) -> float:
    if right == 0.0:
        return (
            math.nan if left == 0.0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1.0, right)
        )
    return f32(left / right)


def expect(program: Program, departures: frozenset[Departure] = AS_PROMISED) -> list[Observation]:
    """What must be seen after each action of the program."""
    oracle = Oracle(program, departures)
    return [oracle.do(action) for action in program.actions]
