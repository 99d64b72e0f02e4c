"""Builds the parameters and gradients of a `GradientCase`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from amp_checks.core import Backend, attempt
from amp_checks.families.scaler.gradients import Gradient, GradientCase, Layout
from amp_checks.torch_api import numerics

SCALE = 1024.0
OVERFLOWS_TWICE = 3e38
"""Finite in float32 and bfloat16; twice it is not."""


@dataclasses.dataclass(slots=True)
class Setup:
    """An optimizer whose parameters hold the case's gradients, and the scaler (None: the gradients are not scaled)."""

    scaler: Any
    parameters: list[torch.Tensor]
    optimizer: torch.optim.Optimizer

    def values(self) -> list[torch.Tensor]:
        """Copies of the parameters."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def gradients(self) -> list[torch.Tensor | None]:
        """Copies of the gradients, dense."""
        return [None if p.grad is None else p.grad.to_dense().clone() for p in self.parameters]


def build(case: GradientCase, backend: Backend, *, scaler: Any, bad: float | None) -> Setup:
    """Parameters, and gradients as a backward leaves them.

    Args:
        case: which.
        backend: where.
        scaler: whose scale the gradients carry; None for unscaled ones.
        bad: what stands in the case's place; None for clean gradients.
    """
    scale = 1.0
    if scaler is not None:
        attempt("scaler.scale", scaler.scale, torch.zeros((), device=backend.device_type))
        scale = scaler.get_scale()
    parameters = []
    for number, gradient in enumerate(case.gradients):
        here = bad if number == case.bad else None
        parameters.append(_parameter(case, gradient, number, backend, scale=scale, bad=here))
    groups = sorted({gradient.group for gradient in case.gradients})
    optimizer = torch.optim.SGD(
        [
            {"params": [p for p, gradient in zip(parameters, case.gradients, strict=True) if gradient.group == group]}
            for group in groups
        ],
        lr=0.5,
    )
    return Setup(scaler, parameters, optimizer)


_SHAPES: dict[Layout, tuple[int, ...]] = {
    Layout.SCALAR: (),
    Layout.EMPTY: (0, 3),
    Layout.CHANNELS_LAST: (2, 3, 2, 2),
}


def _parameter(
    case: GradientCase, gradient: Gradient, number: int, backend: Backend, *, scale: float, bad: float | None
) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, gradient.dtype)
    shape = _SHAPES.get(gradient.layout, (4, 6))
    draw = functools.partial(numerics.randn, *shape, dtype=dtype, device=backend.device_type)
    parameter = draw(seed=f"{case.id} parameter {number}")
    if gradient.layout is Layout.FROZEN:
        return parameter
    parameter.requires_grad_()
    if gradient.layout is not Layout.NONE:
        values = draw(seed=f"{case.id} gradient {number}") * scale
        parameter.grad = _laid_out(values, case, gradient, bad)
    return parameter


def _laid_out(values: torch.Tensor, case: GradientCase, gradient: Gradient, bad: float | None) -> torch.Tensor:
    """The gradient in its layout, with the bad value where the case has it."""
    if gradient.layout in {Layout.SPARSE, Layout.DUPLICATES}:
        return _sparse(values, case, gradient, bad)
    if bad is not None:
        # Through a flat copy: the place is counted in the order of the elements, whatever the layout.
        flat = values.flatten()
        flat[case.element] = bad
        values = flat.view(values.shape)
    match gradient.layout:
        case Layout.TRANSPOSED:
            return values.t().contiguous().t()
        case Layout.STRIDED:
            return torch.stack((values, torch.zeros_like(values)), dim=-1).flatten(-2)[:, ::2]
        case Layout.CHANNELS_LAST:
            return values.contiguous(memory_format=torch.channels_last)
        case Layout.EXPANDED:
            return values[:1].expand_as(values)
        case _:
            return values


def _sparse(values: torch.Tensor, case: GradientCase, gradient: Gradient, bad: float | None) -> torch.Tensor:
    """Rows 1 and 3; with duplicates, row 3 in two parts that add up exactly."""
    rows = values[[1, 3]].clone()
    if bad is not None and not case.sums:
        rows.view(-1)[case.element] = bad
    index = [1, 3]
    if gradient.layout is Layout.DUPLICATES:
        index = [1, 3, 3]
        rows = torch.cat((rows[:1], rows[1:] / 2, rows[1:] / 2))
    if bad is not None and case.sums:
        rows[1:, 0] = OVERFLOWS_TWICE
    where = torch.tensor([index], device=values.device)
    return torch.sparse_coo_tensor(where, rows, values.shape, check_invariants=False)
