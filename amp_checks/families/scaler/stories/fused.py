"""Optimizers that scale and skip inside their own kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Finding
from amp_checks.families.scaler.bits import same
from amp_checks.families.scaler.optimizers.cases import FUSED, has_fused
from amp_checks.families.scaler.rows import CLASS, NO_ERROR, STEP, outcome
from amp_checks.families.scaler.stories.story import Loop, StoryCase, leaf_of, story
from amp_checks.torch_api.backend import Backend


@story(
    "fused-float16", 30, source=f"{CLASS}: the text of its error, and allow_fp16 in the source of _check_inf_per_device"
)
def check_fused_float16(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A fused optimizer takes float16 gradients, skips on inf among them, and ``unscale_`` refuses them."""
    refused = "ValueError: Attempting to unscale FP16 gradients."
    for weight, expected in ((1.0, 0.0), (math.inf, 1.0)):
        leaf = torch.ones(2, dtype=torch.float16, device=backend.device_type, requires_grad=True)
        loop = Loop(backend, leaf, fused=True)
        loop.backward(weight)
        yield case.exact(f"scaler.step on {weight}", actual=outcome(loop.step), expected=NO_ERROR)
        yield case.exact(f"parameter after {weight}", actual=leaf[0].item(), expected=expected)
        loop.update()
        scale = 8.0 if math.isfinite(weight) else 4.0
        yield case.exact(f"scale after {weight}", actual=loop.scaler.get_scale(), expected=scale)
        yield case.exact(f"scaler.unscale_ on {weight}", actual=outcome(loop.unscale), expected=refused)


@story("fused-unscaled-before", 29, 30, source="https://github.com/pytorch/pytorch/issues/95781")
def check_fused_after_unscale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A fused optimizer after ``unscale_``: bad gradients skip, good ones step as without a scaler."""
    for name in (name for name in FUSED if has_fused(name, backend)):
        results = []
        for enabled, weights in ((True, (1.0, 0.5, math.inf)), (False, (1.0, 0.5))):
            settings = {"init_scale": 1024.0, "enabled": enabled}
            leaf = leaf_of(backend, 1.0, -2.0, 3.0)
            kind = getattr(torch.optim, name)
            loop = Loop(backend, leaf, optimizer=kind, lr=0.125, fused=True, settings=settings)
            for weight in weights:
                loop.iterate(weight, unscale=True)
            results.append(leaf.detach())
            if enabled:
                yield case.exact(f"scale after a skip, {name}", actual=loop.scaler.get_scale(), expected=512.0)
        subject = f"parameters after two good steps and a bad one, {name}"
        yield same(subject, results[0], results[1], "those of two steps without a scaler", why=case.source)


class _Scaling(torch.optim.Optimizer):
    """Scales by itself, and takes what gradients there are."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.seen: list[float] = []

    def step(self, *_: Any) -> None:  # type: ignore[override]
        self.seen.append(float(self.found_inf))  # type: ignore[attr-defined]


@story("sparse-float16-of-scaling-optimizer", 19, source=f"{CLASS}: the comment on coalescing in _unscale_grads_")
def check_sparse_float16_is_coalesced(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """float16 sparse gradients are coalesced before they are checked: two finite values of one row may sum to inf."""
    for value, expected in ((40000.0, 1.0), (4.0, 0.0)):
        scaler = backend.scaler(init_scale=8.0)
        scaler.scale(torch.ones((), device=backend.device_type))
        leaf = torch.zeros(3, 1, dtype=torch.float16, device=backend.device_type, requires_grad=True)
        rows = torch.full((2, 1), value, dtype=torch.float16, device=backend.device_type)
        index = torch.tensor([[1, 1]], device=backend.device_type)
        leaf.grad = torch.sparse_coo_tensor(index, rows, leaf.shape, check_invariants=False)
        optimizer = _Scaling([leaf])
        seen = outcome(scaler.step, optimizer)
        yield case.exact(f"error of step, {value} twice", actual=seen, expected=NO_ERROR)
        yield case.exact(f"found_inf, {value} twice", actual=repr(optimizer.seen), expected=repr([expected]))
        together = leaf.grad.is_coalesced()
        yield case.exact(f"gradient is coalesced, {value} twice", actual=together, expected=True)


@story("scale-on-fused-optimizer", 32, source=f"{STEP}: the comment on the product of the scales")
def check_preset_grad_scale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """An ``optimizer.grad_scale`` set by the script multiplies the scale, once, and is gone after the step."""
    loop = Loop(backend, leaf_of(backend, 4.0), fused=True)
    for expected, preset, unscaled in ((3.5, 2.0, False), (2.5, None, False), (2.0, 2.0, True), (1.0, None, True)):
        if preset is not None:
            loop.optimizer.grad_scale = torch.tensor(preset, device=backend.device_type)  # type: ignore[attr-defined]
        loop.iterate(unscale=unscaled)
        when = f"after a step with grad_scale {preset}{', unscaled before' if unscaled else ''}"
        yield case.exact(f"parameter {when}", actual=loop.leaf.item(), expected=expected)
        left = [name for name in ("grad_scale", "found_inf") if hasattr(loop.optimizer, name)]
        yield case.exact(f"left on the optimizer {when}", actual=", ".join(left), expected="")
