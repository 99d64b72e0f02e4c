"""Parameters perturbed by rounding errors: the program's own conditioning, estimated by Monte Carlo.

A loss near zero, a gradient that cancels, a unit whose ReLU flips: where parameters that are moved by half a rounding
error at most move a result that far in float64, its error under AMP is no fault.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from amp_checks.audit.case import Training
from amp_checks.audit.runs.change import Change

PERTURBED_RUNS = 8
"""Runs at most, each moved otherwise. One set in a hundred gives less than 0.45 of the true root mean square."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation(Change):
    """Parameters move by at most ``eps / 2`` of themselves, as rounding to ``dtype`` may move them; ``seed``: how."""

    words: ClassVar[str] = "parameters perturbed"
    dtype: torch.dtype
    seed: int

    def prepared(self, training: Training) -> Training:
        """Move them, in place."""
        generator = torch.Generator().manual_seed(self.seed)
        eps = torch.finfo(self.dtype).eps
        with torch.no_grad():
            for parameter in training.named_parameters().values():
                if parameter.is_floating_point() and parameter.layout is torch.strided:
                    noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
                    parameter.mul_((1.0 + eps * noise).to(parameter))
        return training
