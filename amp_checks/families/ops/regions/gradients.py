"""Gradients through a region: their dtypes and values, taken inside it, twice, and recomputed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from amp_checks.families.ops.regions.program import Seen, Topic, low, named, program, tensor, weight
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import same_bits


@program(
    Topic.GRADIENTS,
    {"of a parameter": "float32", "of an input": "float32", "equal to those through casts by hand": True},
    source="casting by hand with autocast off",
)
def gradient_dtypes(backend: Backend) -> Seen:
    w, x = weight(backend, 4, 4), tensor(backend, 2, 4).requires_grad_()
    with backend.region():
        loss = functional.linear(x, w).float().square().sum()
    loss.backward()
    assert w.grad is not None
    assert x.grad is not None
    hand = functional.linear(*low(backend, x, w)).float().square().sum()
    expected = torch.autograd.grad(hand, [w, x])
    return {
        "of a parameter": dtype_name(w.grad.dtype),
        "of an input": dtype_name(x.grad.dtype),
        "equal to those through casts by hand": same_bits(w.grad, expected[0]) and same_bits(x.grad, expected[1]),
    }


@program(Topic.GRADIENTS, {"inside equals outside": True})
def backward_inside(backend: Backend) -> Seen:
    def gradients(*, inside: bool) -> tuple[torch.Tensor, ...]:
        w, x = weight(backend, 4, 4), tensor(backend, 2, 4)
        with backend.region():
            loss = torch.softmax(functional.linear(x, w), 1).square().sum()
            if inside:
                return torch.autograd.grad(loss, [w])
        return torch.autograd.grad(loss, [w])

    return {"inside equals outside": same_bits(gradients(inside=True)[0], gradients(inside=False)[0])}


@program(
    Topic.GRADIENTS,
    {"dtype": "float32", "equal to that through casts by hand": True},
    source="casting by hand with autocast off",
)
def double_backward(backend: Backend) -> Seen:
    w, x = weight(backend, 4, 4), tensor(backend, 2, 4).requires_grad_()

    def second(run: Callable[[], torch.Tensor]) -> torch.Tensor:
        (first,) = torch.autograd.grad(run().float().pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), w)[0]

    def region() -> torch.Tensor:
        with backend.region():
            return functional.linear(x, w)

    got = second(region)
    expected = second(lambda: functional.linear(*low(backend, x, w)))
    return {"dtype": dtype_name(got.dtype), "equal to that through casts by hand": same_bits(got, expected)}


@program(
    Topic.GRADIENTS,
    {"reentrant: gradient as without": True, "not reentrant: gradient as without": True},
    source="torch.utils.checkpoint restores the state of autocast when it recomputes",
    devices=("cuda", "cpu", "xpu", "mps", "mtia"),
)
def checkpointed(backend: Backend) -> Seen:
    def gradient(mode: bool | None) -> torch.Tensor:
        w, x = weight(backend, 4, 4), tensor(backend, 2, 4).requires_grad_()

        def block(value: torch.Tensor) -> torch.Tensor:
            return torch.tanh(functional.linear(value, w))

        with backend.region():
            out = block(x) if mode is None else checkpoint(block, x, use_reentrant=mode)
        out.float().sum().backward()
        assert w.grad is not None
        return w.grad

    plain = gradient(None)
    return {
        "reentrant: gradient as without": same_bits(gradient(True), plain),
        "not reentrant: gradient as without": same_bits(gradient(False), plain),
    }


@program(
    Topic.GRADIENTS, {"enabled and dtype in a backward run inside a region": "True low"}, source="pytorch issue 125186"
)
def state_in_backward(backend: Backend) -> Seen:
    device, seen = backend.device_type, []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            seen.append(f"{torch.is_autocast_enabled(device)} {named(backend, torch.get_autocast_dtype(device))}")
            return gradients[0]

    with backend.region():
        apply: Any = Spy.apply
        apply(tensor(backend, 3).requires_grad_()).sum().backward()
    return {"enabled and dtype in a backward run inside a region": seen[0]}
