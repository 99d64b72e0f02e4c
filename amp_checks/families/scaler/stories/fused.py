"""Optimizers that scale and skip inside their own kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Backend, Finding, attempt, exact
from amp_checks.families.scaler.calls import StoryCase
from amp_checks.families.scaler.optimizers.cases import FUSED, has_fused
from amp_checks.families.scaler.optimizers.training import difference
from amp_checks.families.scaler.stories.calls import NO_ERROR, backward, leaf_of, outcome


def check_fused_float16(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """float16 parameters: a step without ``unscale_``, a step on inf, and ``unscale_`` itself."""
    refused = "ValueError: Attempting to unscale FP16 gradients."
    for weight, expected in ((1.0, 0.0), (math.inf, 1.0)):
        scaler = backend.scaler(init_scale=8.0)
        leaf = torch.ones(2, dtype=torch.float16, device=backend.device_type, requires_grad=True)
        optimizer = torch.optim.SGD([leaf], lr=1.0, fused=True)
        backward(scaler, leaf, weight)
        seen = outcome("scaler.step", scaler.step, optimizer)
        yield exact(f"scaler.step on {weight}", actual=seen, expected=NO_ERROR, why=case.source)
        yield exact(f"parameter after {weight}", actual=leaf[0].item(), expected=expected, why=case.source)
        attempt("scaler.update", scaler.update)
        scale = 8.0 if math.isfinite(weight) else 4.0
        yield exact(f"scale after {weight}", actual=scaler.get_scale(), expected=scale, why=case.source)
        seen = outcome("scaler.unscale_", scaler.unscale_, optimizer)
        yield exact(f"scaler.unscale_ on {weight}", actual=seen, expected=refused, why=case.source)


def check_fused_after_unscale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``unscale_`` first, then a fused step: skipped on a bad gradient, else the step without a scaler."""
    for name in (name for name in FUSED if has_fused(name, backend)):
        results = []
        for scaler in (backend.scaler(init_scale=1024.0), backend.scaler(enabled=False)):
            leaf = leaf_of(backend, 1.0, -2.0, 3.0)
            optimizer = getattr(torch.optim, name)([leaf], lr=0.125, fused=True)
            for weight in (1.0, 0.5, math.inf):
                if not math.isfinite(weight) and not scaler.is_enabled():
                    continue
                optimizer.zero_grad()
                backward(scaler, leaf, weight)
                attempt("scaler.unscale_", scaler.unscale_, optimizer)
                attempt("scaler.step", scaler.step, optimizer)
                attempt("scaler.update", scaler.update)
            results.append(leaf.detach())
            if scaler.is_enabled():
                yield exact(f"scale after a skip, {name}", actual=scaler.get_scale(), expected=512.0, why=case.source)
        yield exact(
            f"parameters after two good steps and a bad one, {name}",
            actual=difference(*results) or "those of two steps without a scaler",
            expected="those of two steps without a scaler",
            why=case.source,
        )


class _Scaling(torch.optim.Optimizer):
    """Scales by itself, and takes what gradients there are."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.seen: list[float] = []

    def step(self, *_: Any) -> None:  # type: ignore[override]
        self.seen.append(float(self.found_inf))  # type: ignore[attr-defined]


def check_sparse_float16_is_coalesced(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Two finite float16 values of one row whose sum is inf; and two whose sum is finite."""
    for value, expected in ((40000.0, 1.0), (4.0, 0.0)):
        scaler = backend.scaler(init_scale=8.0)
        scaler.scale(torch.ones((), device=backend.device_type))
        leaf = torch.zeros(3, 1, dtype=torch.float16, device=backend.device_type, requires_grad=True)
        rows = torch.full((2, 1), value, dtype=torch.float16, device=backend.device_type)
        index = torch.tensor([[1, 1]], device=backend.device_type)
        leaf.grad = torch.sparse_coo_tensor(index, rows, leaf.shape, check_invariants=False)
        optimizer = _Scaling([leaf])
        seen = outcome("scaler.step", scaler.step, optimizer)
        yield exact(f"error of step, {value} twice", actual=seen, expected=NO_ERROR, why=case.source)
        told = repr(optimizer.seen)
        yield exact(f"found_inf, {value} twice", actual=told, expected=repr([expected]), why=case.source)
        together = leaf.grad.is_coalesced()
        yield exact(f"gradient is coalesced, {value} twice", actual=together, expected=True, why=case.source)


def check_preset_grad_scale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``optimizer.grad_scale`` set by the script: gradients are divided by its product with the scale, once."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend, 4.0)
    optimizer = torch.optim.SGD([leaf], lr=1.0, fused=True)
    for expected, preset, unscaled in ((3.5, 2.0, False), (2.5, None, False), (2.0, 2.0, True), (1.0, None, True)):
        if preset is not None:
            optimizer.grad_scale = torch.tensor(preset, device=backend.device_type)  # type: ignore[attr-defined]
        optimizer.zero_grad()
        backward(scaler, leaf)
        if unscaled:
            attempt("scaler.unscale_", scaler.unscale_, optimizer)
        attempt("scaler.step", scaler.step, optimizer)
        attempt("scaler.update", scaler.update)
        told = f"after a step with grad_scale {preset}{', unscaled before' if unscaled else ''}"
        yield exact(f"parameter {told}", actual=leaf.item(), expected=expected, why=case.source)
        left = [name for name in ("grad_scale", "found_inf") if hasattr(optimizer, name)]
        yield exact(f"left on the optimizer {told}", actual=", ".join(left), expected="", why=case.source)
