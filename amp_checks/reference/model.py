"""The reference model."""

from __future__ import annotations

import torch

INPUTS = 4
HIDDEN = 64


class SimpleTextModel(torch.nn.Module):
    """Linear(4, 64), ReLU, Linear(64, ``outputs``): ``(batch, 4)`` to ``(batch, outputs)``."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(INPUTS, HIDDEN)
        self.relu = torch.nn.ReLU()
        self.fc2 = torch.nn.Linear(HIDDEN, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.relu(self.fc1(x)))
        return out
