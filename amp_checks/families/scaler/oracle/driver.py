"""Runs a program on the scaler under test, with real tensors, and observes it as the oracle is observed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch

from amp_checks.core import Raised, attempt, first_line
from amp_checks.families.scaler.oracle import program as prog
from amp_checks.families.scaler.oracle.program import Kind, Observation, Program
from amp_checks.torch_api.backend import Backend


class Recording(torch.optim.Optimizer):
    """``p -= grad``; keeps the sum of the gradients as its state and returns the number of its steps."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(list(parameters), {})
        self.calls = 0
        self.fails = False
        for parameter in self._parameters():
            self.state[parameter]["sum"] = torch.zeros_like(parameter)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def step(self, *_: Any, **__: Any) -> float:  # type: ignore[override]
        return self.apply(None)

    @torch.no_grad()
    def apply(self, factor: torch.Tensor | None) -> float:
        """The step itself, on gradients divided by ``factor``."""
        if self.fails:
            message = "the optimizer fails"
            raise ArithmeticError(message)
        for parameter in self._parameters():
            if parameter.grad is not None:
                if factor is not None:
                    parameter.grad.div_(factor)
                parameter.sub_(parameter.grad)
                self.state[parameter]["sum"].add_(parameter.grad)
        self.calls += 1
        return float(self.calls)


class Scaling(Recording):
    """Scales and skips by itself, as torch's fused optimizers do."""

    _step_supports_amp_scaling = True

    def step(self, *_: Any, **__: Any) -> float | None:  # type: ignore[override]
        if self.fails:
            return self.apply(None)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return None
        return self.apply(getattr(self, "grad_scale", None))


class ScalerArgument(Recording):
    """Takes the scaler as an argument and asks it, as the deprecated contract had it."""

    _step_supports_amp_scaling = True

    def step(self, *_: Any, grad_scaler: Any = None, **__: Any) -> float | None:  # type: ignore[override]
        if grad_scaler is not None:
            grad_scaler.unscale_(self)
            if any(not bool(torch.isfinite(p.grad).all()) for p in self._parameters() if p.grad is not None):
                return None
        return self.apply(None)


_KINDS: dict[Kind, type[Recording]] = {
    Kind.PLAIN: Recording,
    Kind.SCALING: Scaling,
    Kind.SCALER_ARGUMENT: ScalerArgument,
}


class Driver:
    """One run of a program under a backend."""

    def __init__(self, program: Program, backend: Backend) -> None:
        self.program = program
        self.backend = backend
        self.parameters = [
            torch.tensor(values, dtype=torch.float32, device=backend.device_type, requires_grad=True)
            for values in program.parameters
        ]
        self.optimizers = [
            _KINDS[spec.kind](self.parameters[number] for number in spec.parameters) for spec in program.optimizers
        ]
        self.saved: dict[str, Any] = {}
        self.scaler: Any = None
        self._fresh(prog.Fresh())

    def do(self, action: prog.Action) -> Observation:
        """Carry out one action; what it raises becomes part of what is seen."""
        error, returned = "none", "None"
        try:
            returned = repr(attempt(type(action).__name__, self.CALLS[type(action)], self, action))
        except Raised as raised:
            error, returned = f"{type(raised.error).__name__}: {first_line(raised.error)}", "None"
        try:
            return attempt("the scaler's state after the action", self.observe, error, returned)
        except Raised as raised:
            return _unseen(raised)

    def observe(self, error: str, returned: str) -> Observation:
        state = self.scaler.state_dict()
        return Observation(
            error=error,
            returned=returned,
            scale=repr(self.scaler.get_scale()),
            tracker=state["_growth_tracker"] if state else -1,
            steps=tuple(optimizer.calls for optimizer in self.optimizers),
            gradients=tuple(_text(parameter.grad) for parameter in self.parameters),
            parameters=tuple(map(_text, self.parameters)),
            states=tuple(
                _text(optimizer.state[self.parameters[number]]["sum"])
                for optimizer, spec in zip(self.optimizers, self.program.optimizers, strict=True)
                for number in spec.parameters
            ),
        )

    # -- actions -----------------------------------------------------------------------------------------------------

    def _fresh(self, _: prog.Fresh) -> None:
        self.scaler = self.backend.scaler(**prog.settings_of(self.program.settings))

    def _scale(self, _: prog.Scale) -> None:
        self.scaler.scale(torch.ones((), device=self.backend.device_type))

    def _backward(self, action: prog.Backward) -> None:
        loss = torch.zeros((), device=self.backend.device_type)
        for number, coefficients in action.coefficients:
            weight = torch.tensor(coefficients, dtype=torch.float32, device=self.backend.device_type)
            loss = loss + (self.parameters[number] * weight).sum()
        self.scaler.scale(loss).backward()

    def _zero_grad(self, action: prog.ZeroGrad) -> None:
        self.optimizers[action.optimizer].zero_grad()

    def _set_grad(self, action: prog.SetGrad) -> None:
        parameter = self.parameters[action.parameter]
        values = torch.tensor(action.values, dtype=torch.float32, device=self.backend.device_type)
        if parameter.grad is None:
            parameter.grad = values
        else:
            parameter.grad.copy_(values)

    def _unscale(self, action: prog.Unscale) -> None:
        self.scaler.unscale_(self.optimizers[action.optimizer])

    def _owned(self, number: int) -> list[torch.Tensor]:
        """Parameters with gradients of an optimizer (clipping by value refuses an empty list)."""
        owned = (self.parameters[index] for index in self.program.optimizers[number].parameters)
        return [parameter for parameter in owned if parameter.grad is not None]

    def _clip_value(self, action: prog.ClipValue) -> None:
        if owned := self._owned(action.optimizer):
            torch.nn.utils.clip_grad_value_(owned, action.bound)

    def _clip_norm(self, action: prog.ClipNorm) -> None:
        torch.nn.utils.clip_grad_norm_(self._owned(action.optimizer), action.bound, norm_type=float("inf"))

    def _step(self, action: prog.Step) -> Any:
        optimizer = self.optimizers[action.optimizer]
        closures: dict[str, dict[str, Any]] = {
            "": {},
            "none": {"closure": None},
            "keyword": {"closure": lambda: 0.0},
        }
        optimizer.fails = action.fails
        try:
            return self.scaler.step(optimizer, **closures[action.closure])
        finally:
            optimizer.fails = False

    def _update(self, action: prog.Update) -> None:
        if action.new_scale is None:
            self.scaler.update()
        elif action.tensor:
            self.scaler.update(torch.tensor(action.new_scale, device=self.backend.device_type))
        else:
            self.scaler.update(action.new_scale)

    def _set(self, action: prog.Set) -> None:
        getattr(self.scaler, f"set_{action.name}")(action.value)

    def _save(self, _: prog.Save) -> None:
        self.saved = self.scaler.state_dict()

    def _load(self, _: prog.Load) -> None:
        self.scaler.load_state_dict(self.saved)

    def _copy(self, action: prog.Copy) -> None:
        if action.how == "pickle":
            self.scaler = pickle.loads(pickle.dumps(self.scaler))  # noqa: S301 - our own scaler
        else:
            self.scaler = copy.deepcopy(self.scaler)

    CALLS: ClassVar[dict[type[prog.Action], Callable[..., Any]]] = {
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


def _unseen(raised: Raised) -> Observation:
    """The observation of a scaler whose state cannot be read."""
    what = f"{raised.subject}: {type(raised.error).__name__}: {first_line(raised.error)}"
    return Observation(
        error=what, returned="", scale=what, tracker=-2, steps=(), gradients=(), parameters=(), states=()
    )


def _text(tensor: torch.Tensor | None) -> str:
    return prog.text(None if tensor is None else tuple(tensor.detach().tolist()))


def drive(program: Program, backend: Backend) -> list[Observation]:
    """What is seen after each action, on the scaler under test."""
    driver = Driver(program, backend)
    return [driver.do(action) for action in program.actions]
