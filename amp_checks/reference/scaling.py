"""Two tasks that show what the loss scale is for: one underflows float16 without it, the other overflows with it."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional

from amp_checks.reference.datasets import DIGITS_HELD_OUT, Batches, digits
from amp_checks.reference.loop import Learner, Task, Turn, Validation

HALF = 32


def _lower_halves(device: str, *, unit: float, reduction: str, learning_rate: float) -> Learner:
    """Predict the lower half of a digit from its upper half, in other units of brightness.

    Args:
        device: where to train.
        unit: what a brightness of 1 is called in the targets; the model's outputs are multiplied by it.
        reduction: of the squared error: ``mean`` gives tiny gradients, ``sum`` large ones.
        learning_rate: of Adam, whose epsilon is far below the gradients: the size of gradients does not matter to it.
    """
    images = digits()[0].to(device)
    upper, lower = images[:, :HALF], images[:, HALF:] * unit
    seen, held_out = len(images) - DIGITS_HELD_OUT, slice(-DIGITS_HELD_OUT, None)
    model = nn.Sequential(nn.Linear(HALF, 64), nn.ReLU(), nn.Linear(64, HALF)).to(device)
    batches = Batches(seen, 64)

    def loss(step: int, _micro: int) -> torch.Tensor:
        rows = batches(step).to(device)
        return functional.mse_loss(unit * model(upper[rows]), lower[rows], reduction=reduction)

    def validate() -> Validation:
        error = functional.mse_loss(unit * model(upper[held_out]), lower[held_out]).item()
        return Validation(loss=error, metric=error / lower[held_out].var().item())

    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, eps=1e-30)
    return Learner(model=model, turns=(Turn(optimizer=optimizer, loss=loss),), validate=validate)


UNDERFLOW = Task(
    id="gradients-underflow",
    build=functools.partial(_lower_halves, unit=3e-3, reduction="mean", learning_rate=3e-3),
    steps=60,
)
"""Gradients of about 1e-9: zero in float16, whose smallest number is 6e-8, unless the loss is scaled."""

OVERFLOW = Task(
    id="gradients-overflow",
    build=functools.partial(_lower_halves, unit=1.0, reduction="sum", learning_rate=3e-3),
    steps=60,
)
"""Gradients of about 1e3: beyond float16, whose largest number is 65504, until the loss scale has backed off."""
