"""What a GradScaler keeps to itself, copied without waiting for the device."""

from __future__ import annotations

from typing import Any

import torch

from amp_checks.torch_api.private import found_inf_per_device


def scale_and_tracker(scaler: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Copies of the loss scale (float32) and of the growth tracker (int32); None before its first use."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    if scale is None or tracker is None:
        return None
    return scale.detach().clone(), tracker.detach().clone()


def found_inf(scaler: Any, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What the scaler found in this optimizer's gradients, one float32 a device: 1.0 is a value that is not finite."""
    return [found.detach() for found in found_inf_per_device(scaler, optimizer).values()]


def is_unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether this optimizer's gradients were divided by the scale since the scaler's last update."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    return state is not None and state["stage"].name != "READY"
