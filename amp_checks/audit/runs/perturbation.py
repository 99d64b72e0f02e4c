"""What rounding the parameters to 16 bits does to a program, whatever else AMP does: its condition, found by trying.

A loss near zero, a gradient that cancels, a unit whose ReLU flips: where parameters that are moved by half a rounding
error at most move a result that far in float64, its error under AMP is no fault.
"""

from __future__ import annotations

import dataclasses

import torch

from amp_checks.audit.case import Training

SHAKES = 8
"""Runs, each moved otherwise. One set in a hundred gives less than 0.45 of the true root mean square."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shake:
    """Parameters move by at most ``eps / 2`` of themselves, as rounding to ``dtype`` may move them; ``number``: how."""

    dtype: torch.dtype
    number: int

    def __call__(self, training: Training) -> None:
        """Move them, in place."""
        generator = torch.Generator().manual_seed(self.number)
        eps = torch.finfo(self.dtype).eps
        with torch.no_grad():
            for parameter in training.named_parameters().values():
                if parameter.is_floating_point() and parameter.layout is torch.strided:
                    noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
                    parameter.mul_((1.0 + eps * noise).to(parameter))
