"""Small words for programs that run under emulated CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def region(**settings: Any) -> Any:
    """An autocast region of CUDA's in float16."""
    return torch.autocast("cuda", dtype=torch.float16, **settings)


def mlp() -> nn.Module:
    """Two small layers and a norm."""
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)).to("cuda")
