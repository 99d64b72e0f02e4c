"""Manual loss scaling: a constant that the loss is multiplied by, and its gradients are divided by."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from amp_checks.audit.watching.gradients import Gradient, State

LEAST = 2.0**7
"""The least power of two that is taken for a loss scale where nothing divides by it: weights of losses are smaller."""

_BY = {
    f"aten::{name}": power
    for name, power in (
        ("mul", 1.0), ("mul_", 1.0), ("div", -1.0), ("div_", -1.0),
        ("_foreach_mul", 1.0), ("_foreach_mul_", 1.0), ("_foreach_div", -1.0), ("_foreach_div_", -1.0),
    )
}  # fmt: skip


def factor(base: str, args: tuple[Any, ...]) -> float | None:
    """What an op multiplies by, where that is a constant; None for others."""
    power = _BY.get(base)
    if power is None or len(args) < 2:
        return None
    value = args[1]
    if isinstance(value, torch.Tensor):
        # Python numbers arrive as tensors of no dimension on the CPU: reading one waits for no device.
        if value.dim() or value.requires_grad or value.device.type != "cpu" or value.is_complex():
            return None
        value = value.item()
    if not isinstance(value, int | float) or not value > 0.0 or not math.isfinite(value):
        return None
    return math.pow(value, power)


def found(gradients: Iterable[Gradient], *, copies: bool = False) -> tuple[float, bool] | None:
    """The factor of a manual loss scale, and whether its gradients were divided by it; None without one.

    ``copies``: what was made of gradients counts, as it is not they that a step is made with.
    """
    undone, left = None, None
    for gradient in gradients:
        if gradient.state is not State.PLAIN or not gradient.factors:
            continue
        # What was made of it counts where it was put in its place, and is no figure for a log.
        replaced = gradient.parameter.grad is not gradient.held
        by = [one for one, in_place in gradient.multiplied if in_place or replaced or copies]
        by.append(math.prod(by))
        for scale in sorted({*gradient.factors, math.prod(gradient.factors)}, reverse=True):
            if scale > 1.0 and any(math.isclose(one * scale, 1.0, rel_tol=1e-6) for one in by):
                undone = scale
            elif scale >= LEAST and math.frexp(scale)[0] == 0.5:
                left = left or scale
    if undone is not None:
        return undone, True
    return (left, False) if left is not None else None
