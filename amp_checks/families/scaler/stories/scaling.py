"""``scale``: autograd through it, the mode of the first call, outputs and gradients of several devices."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from amp_checks.core import Finding, attempt
from amp_checks.families.scaler import rows
from amp_checks.families.scaler.bits import same
from amp_checks.families.scaler.rows import CLASS, EXAMPLES, NO_ERROR, outcome
from amp_checks.families.scaler.stories.story import StoryCase, leaf_of, story
from amp_checks.torch_api import numerics, private
from amp_checks.torch_api.backend import Backend

SCALE = f"{rows.SCALE}: a tensor or an iterable of tensors"


@story("scaling-is-differentiable", 8, source=SCALE)
def check_scaling_is_differentiable(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The scaled loss has a graph; its gradient is the scale; the scale itself requires none."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend, 3.0)
    for outputs in (leaf.sum(), [leaf.sum()]):
        leaf.grad = None
        scaled = attempt("scaler.scale", scaler.scale, outputs)
        loss = scaled[0] if isinstance(scaled, list) else scaled
        kind = type(outputs).__name__
        yield case.exact(f"scaled {kind} requires grad", actual=loss.requires_grad, expected=True)
        attempt("backward", loss.backward)
        seen = None if leaf.grad is None else leaf.grad.item()
        yield case.exact(f"gradient through a scaled {kind}", actual=seen, expected=8.0)
    plain = attempt("scaler.scale", scaler.scale, torch.ones(2, device=backend.device_type))
    yield case.exact("scaled constant requires grad", actual=plain.requires_grad, expected=False)


@story("first-scale-in-inference-mode", 12, source=SCALE, variant="inference_mode")
@story("first-scale-in-no-grad", 12, source=SCALE, variant="no_grad")
def check_first_scale_mode(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The mode in which ``scale`` is called first is of no consequence for the iterations after it."""
    scaler = backend.scaler(init_scale=8.0)
    with getattr(torch, case.variant)():
        attempt("scaler.scale", scaler.scale, torch.ones((), device=backend.device_type))
    leaf = leaf_of(backend)
    yield case.exact("scaler.scale of a loss", actual=outcome(scaler.scale, leaf.sum()), expected=NO_ERROR)
    leaf.grad = torch.full_like(leaf, 8.0)
    stepped = outcome(scaler.step, torch.optim.SGD([leaf], lr=1.0))
    yield case.exact("scaler.step", actual=stepped, expected=NO_ERROR)
    yield case.exact("scaler.update", actual=outcome(scaler.update), expected=NO_ERROR)


@story("backward-after-update", 8, 10, source=f"{CLASS}: _MultiDeviceReplicator serves copies")
def check_backward_after_update(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Outputs scaled in a list keep the scale of their time: ``scale([loss])``, ``update``, only then ``backward``."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend, 3.0)
    (scaled,) = attempt("scaler.scale", scaler.scale, [leaf.sum()])
    attempt("scaler.update", scaler.update, 2.0)
    yield case.exact("backward after update", actual=outcome(scaled.backward), expected=NO_ERROR)
    gradient = None if leaf.grad is None else leaf.grad.item()
    yield case.exact("gradient", actual=gradient, expected=8.0)


@story("gradient-penalty", 8, 15, source=f"{EXAMPLES}, gradient penalty")
def check_gradient_penalty(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Two steps with a penalty on the gradient's norm, with a scaler as the notes have it, and without: the same."""
    results = []
    for scaled in (True, False):
        scaler = backend.scaler(init_scale=1024.0, growth_interval=1, enabled=scaled)
        weight = numerics.randn(3, seed="gradient penalty", device=backend.device_type).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.125)
        for number in range(2):
            batch = numerics.randn(3, seed=f"gradient penalty {number}", device=backend.device_type)
            loss = (weight * batch).tanh().sum()
            outputs = attempt("scaler.scale", scaler.scale, loss)
            (gradient,) = torch.autograd.grad(outputs, [weight], create_graph=True)
            penalty = (gradient * (1.0 / scaler.get_scale())).square().sum()
            optimizer.zero_grad()
            attempt("scaler.scale", scaler.scale, loss + penalty).backward()
            attempt("scaler.step", scaler.step, optimizer)
            attempt("scaler.update", scaler.update)
        results.append(weight.detach())
        subject = f"scale after two steps, enabled={scaled}"
        yield case.exact(subject, actual=scaler.get_scale(), expected=4096.0 if scaled else 1.0)
    yield same("parameters", results[0], results[1], "those without a scaler", why=case.source)


@story("several-devices", 48, source=f"{CLASS}: _MultiDeviceReplicator", real_device="cpu")
def check_several_devices(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The scale is copied to each device, and each device's gradients get a flag there; here, CPU and meta."""
    scaler = backend.scaler(init_scale=8.0)
    here, there = torch.ones((), device=backend.device_type), torch.ones((), device="meta")
    for outputs, expected in (
        ([here, there, there], "cpu, meta, meta"),
        ([there, here], "meta, cpu"),
        ([there], "meta"),
    ):
        scaled = attempt("scaler.scale", scaler.scale, outputs)
        devices = ", ".join(each.device.type for each in scaled)
        yield case.exact("devices of scaled outputs", actual=devices, expected=expected)
    lone = attempt("scaler.scale", scaler.scale, there)
    yield case.exact("device of a lone scaled output", actual=lone.device.type, expected="meta")
    leaf, far = leaf_of(backend, 1.0), torch.ones(2, device="meta", requires_grad=True)
    optimizer = torch.optim.SGD([leaf, far], lr=1.0)
    leaf.grad, far.grad = torch.full((1,), 8.0, device=backend.device_type), torch.ones(2, device="meta")
    attempt("scaler.unscale_", scaler.unscale_, optimizer)
    flags = private.found_inf_per_device(scaler, optimizer)
    devices = ", ".join(f"{device.type}: {flag.device.type}" for device, flag in flags.items())
    yield case.exact("devices with a flag", actual=devices, expected="cpu: cpu, meta: meta")
    yield case.exact("gradient on the CPU", actual=leaf.grad.item(), expected=1.0)
