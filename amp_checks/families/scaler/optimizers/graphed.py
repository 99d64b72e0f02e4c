"""Training steps captured once in a CUDA graph, and replayed. Needs a CUDA device."""

from __future__ import annotations

from typing import Any

import torch

from amp_checks.core import attempt
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.families.scaler.optimizers.training import Training
from amp_checks.torch_api.backend import Backend


class GraphedTraining(Training):
    """As `Training`; scaling, step and update are one graph, and only the unscaled gradients are put in from outside.

    Source: torch notes, CUDA semantics: "Usage with torch.cuda.amp" under whole-network capture. A fused and capturable
    optimizer reads ``found_inf`` on the device, so that a replay can skip its step.
    """

    def __init__(self, case: OptimizerCase, backend: Backend, scaler: Any) -> None:
        super().__init__(case, backend, scaler)
        self.weights = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        before = self.bits_of_parameters()
        state = None if scaler is None else scaler.state_dict()
        # The steps before the capture make the optimizer's state and the scale, on a stream of their own.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._once()
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before.values(), strict=True):
                parameter.copy_(value)
                for held in self.optimizer.state[parameter].values():
                    held.zero_()
        if scaler is not None:
            scaler.load_state_dict(state)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            attempt("a step under capture", self._once)

    def _once(self) -> None:
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            scaled = weight if self.scaler is None else self.scaler.scale(weight)
            parameter.grad.copy_(scaled)  # type: ignore[union-attr]
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def step(self, name: str, *, bad: float | None = None) -> None:
        for weight, value in zip(self.weights, self.weights_of(name, bad=bad), strict=True):
            weight.copy_(value)
        attempt("a replay of the step", self.graph.replay)
