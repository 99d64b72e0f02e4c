"""Seeded training steps with a real optimizer of torch.optim, with a scaler or without one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from amp_checks.core import Backend, attempt
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.torch_api import numerics

Bits = dict[str, Any]
"""Name -> a copy of a tensor, or a plain value."""


class Training:
    """Parameters, their optimizer, and a scaler where one is given.

    The loss is linear in the parameters, with coefficients drawn for the step's name: the gradient of a step depends on
    its name and on the scale alone.
    """

    def __init__(self, case: OptimizerCase, backend: Backend, scaler: Any) -> None:
        self.case = case
        self.backend = backend
        self.scaler = scaler
        self.parameters = [
            numerics.randn(*shape, seed=f"{case.id} parameter {number}", device=backend.device_type).requires_grad_()
            for number, shape in enumerate(case.shapes)
        ]
        if case.differentiable:
            # Such an optimizer writes to its parameters under autograd, which refuses leaves.
            self.parameters = [parameter.clone() for parameter in self.parameters]
            for parameter in self.parameters:
                parameter.retain_grad()
        self.optimizer = getattr(torch.optim, case.optimizer)(self.parameters, **dict(case.settings))

    def step(self, name: str, *, bad: float | None = None) -> Any:
        """One step; ``bad`` takes the place of the last element of the last parameter's gradient.

        Returns:
            What ``scaler.step`` (or, without a scaler, ``optimizer.step``) returned.
        """
        self.set_gradients(name, bad=bad)
        if self.scaler is None:
            return attempt("optimizer.step", self.optimizer.step)
        returned = attempt("scaler.step", self.scaler.step, self.optimizer)
        attempt("scaler.update", self.scaler.update)
        return returned

    def set_gradients(self, name: str, *, bad: float | None = None) -> None:
        """What ``scaler.scale(loss).backward()`` leaves in ``.grad``."""
        for parameter, weight in zip(self.parameters, self.weights_of(name, bad=bad), strict=True):
            parameter.grad = self._gradient(parameter, weight)

    def weights_of(self, name: str, *, bad: float | None = None) -> list[torch.Tensor]:
        """The unscaled gradients of a step."""
        weights = [
            numerics.randn(*parameter.shape, seed=f"{self.case.id} {name} {number}", device=self.backend.device_type)
            for number, parameter in enumerate(self.parameters)
        ]
        if bad is not None:
            weights[-1].reshape(-1)[-1] = bad
        return weights

    def _gradient(self, parameter: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        leaf = torch.zeros_like(weight, requires_grad=True)
        loss = (leaf * weight).sum()
        scaled = loss if self.scaler is None else attempt("scaler.scale", self.scaler.scale, loss)
        scaled.backward()
        gradient = leaf.grad
        assert gradient is not None
        if not self.case.sparse:
            return gradient
        # Every other row, as an embedding that was looked up there leaves it.
        rows = torch.arange(1, parameter.shape[0], 2, device=gradient.device)
        return torch.sparse_coo_tensor(rows[None], gradient[rows], parameter.shape, check_invariants=False)

    def bits_of_parameters(self) -> Bits:
        return {f"parameter {number}": value.detach().clone() for number, value in enumerate(self.parameters)}

    def bits_of_state(self) -> Bits:
        """Every entry of the optimizer's state, step counters included."""
        found: Bits = {}
        for number, parameter in enumerate(self.parameters):
            for name, value in self.optimizer.state[parameter].items():
                copied = value.detach().clone() if isinstance(value, torch.Tensor) else value
                found[f"state of parameter {number}, {name}"] = copied
        return found


def run_steps(training: Training, names: Sequence[str]) -> Training:
    """Good steps of those names."""
    for name in names:
        training.step(name)
    return training


def difference(actual: Any, expected: Any) -> str:
    """Empty where both are the same bit for bit, else the first difference in words, and a factor common to all."""
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        same = type(actual) is type(expected) and bool(actual == expected)
        return "" if same else f"{actual!r} instead of {expected!r}"
    if numerics.same_bits(actual, expected):
        return ""
    if actual.dtype is not expected.dtype or actual.shape != expected.shape:
        return f"{_kind(actual)} instead of {_kind(expected)}"
    for place, (one, other) in enumerate(zip(actual.flatten(), expected.flatten(), strict=True)):
        if not numerics.same_bits(one, other):
            told = f"{one.item():.6g} instead of {other.item():.6g} at element {place}"
            factor = _common_factor(actual, expected)
            return told if factor is None else f"{factor:g} times what it should be: {told}"
    return "other bits"


def _common_factor(actual: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The factor by which every element is off, exactly, where it is a power of two: a scale that was left on."""
    if not actual.is_floating_point() or not actual.isfinite().all() or not (expected != 0).all():
        return None
    factors = (actual.double() / expected.double()).unique()
    return factors.item() if len(factors) == 1 and math.frexp(factors.item())[0] == 0.5 else None


def _kind(tensor: torch.Tensor) -> str:
    return f"{numerics.dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
