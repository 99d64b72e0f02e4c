"""Seeded training steps with a real optimizer of torch.optim, with a scaler or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from amp_checks.core import attempt
from amp_checks.families.scaler.bits import Bits
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.torch_api import numerics
from amp_checks.torch_api.backend import Backend


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

    def bits_of_gradients(self) -> Bits:
        gradients = (torch.as_tensor(parameter.grad) for parameter in self.parameters)
        return {f"gradient {number}": gradient.to_dense() for number, gradient in enumerate(gradients)}

    def bits(self) -> Bits:
        """Parameters and state."""
        return self.bits_of_parameters() | self.bits_of_state()


def run_steps(training: Training, names: Sequence[str]) -> Training:
    """Good steps of those names."""
    for name in names:
        training.step(name)
    return training
