"""Autograd under emulation: hooks, custom functions, recomputation, transforms, second derivatives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated import mlp, region
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("emulated_cuda")


def test_double_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
    x = torch.randn(5, 4, device="cuda", requires_grad=True)
    with region():
        out = model(x).float().sum()
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    gradient.pow(2).sum().backward()
    assert all(p.grad is not None for p in model[0].parameters())
    plain = nn.Sequential(*map(copy.deepcopy, model))
    plain.zero_grad()
    (gradient,) = torch.autograd.grad(plain(x).sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad, rtol=0.02, atol=0.02)


def test_backward_inside_the_region() -> None:
    model = mlp()
    with region():
        model(torch.randn(3, 4, device="cuda")).sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


def test_hooks_see_plain_tensors_and_a_working_mode() -> None:
    model = nn.Linear(4, 4, device="cuda")
    seen: list[tuple[type, torch.dtype, str]] = []

    def note(value: Tensor) -> None:
        seen.append((type(value), value.dtype, value.device.type))

    def note_gradient(module: nn.Module, inputs: Any, outputs: Any) -> None:
        note(outputs[0])

    model.register_forward_hook(lambda module, args, out: note(out))
    model.register_full_backward_hook(note_gradient)
    model.weight.register_hook(note)
    model.bias.register_post_accumulate_grad_hook(lambda parameter: note(parameter.grad))
    with region():
        out = model(torch.randn(3, 4, device="cuda", requires_grad=True))
        out.register_hook(lambda gradient: note(gradient @ gradient.T))
    with region():
        out.float().sum().backward()
    assert {kind for kind, _, _ in seen} == {Tensor}
    assert {device for _, _, device in seen} == {"cuda"}
    assert sorted(str(dtype) for _, dtype, _ in seen) == ["torch.float16"] * 3 + ["torch.float32"] * 2


class Doubling(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dtypes = [torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")]
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        assert [torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")] == ctx.dtypes
        return gradient @ weight.T, x.T @ gradient


class InFloat32(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert x.dtype is torch.float32
        assert not torch.is_autocast_enabled("cuda")
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        assert gradient.dtype is torch.float32
        out: Tensor = gradient @ x.T + x.T @ gradient
        return out


def test_custom_functions() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with region():
        out = Doubling.apply(x, x)  # type: ignore[no-untyped-call]
        assert out.dtype is torch.float16
    out.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float32
    half = x.detach().half().requires_grad_()
    with region():
        out = InFloat32.apply(half)  # type: ignore[no-untyped-call]
    assert out.dtype is torch.float32
    out.sum().backward()
    assert half.grad is not None
    assert half.grad.dtype is torch.float16


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpoint_recomputes_under_autocast(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)).cuda()
    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    dtypes: list[torch.dtype] = []
    model[0].register_forward_hook(lambda module, args, out: dtypes.append(out.dtype))

    def gradients(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        with region():
            out = call(x)
        out.float().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients(model)
    recomputed = gradients(lambda value: checkpoint(model, value, use_reentrant=reentrant))
    assert dtypes == [torch.float16] * 3
    assert all(map(torch.equal, plain, recomputed))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # torch's own use of it
def test_vmap_and_functional_gradients() -> None:
    weight = torch.randn(4, 4, device="cuda")
    x = torch.randn(3, 4, device="cuda")
    with region():
        assert torch.vmap(lambda row: weight @ row)(x).dtype is torch.float16
        gradient = torch.func.grad(lambda w: (x @ w).float().pow(2).sum())(weight)
        assert gradient.dtype is torch.float32
        per_sample = torch.vmap(torch.func.grad(lambda w, row: (row @ w).float().pow(2).sum()), (None, 0))(weight, x)
        out, tangent, *_ = torch.func.jvp(lambda w: x @ w, (weight,), (torch.ones_like(weight),))
    assert out.dtype is tangent.dtype is torch.float16
    torch.testing.assert_close(per_sample.sum(0), gradient, rtol=0.02, atol=0.05)
    torch.testing.assert_close(gradient, 2 * x.T @ (x @ weight), rtol=0.02, atol=0.05)


def test_saved_tensors_hooks_of_the_user() -> None:
    packed: list[Tensor] = []

    def pack(saved: Tensor) -> int:
        packed.append(saved)
        return len(packed) - 1

    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda index: packed[index]), region():
        out = (x @ x).float().pow(2).sum()
    out.backward()
    assert {tensor.dtype for tensor in packed} == {torch.float16, torch.float32}
    assert x.grad is not None

    with torch.autograd.graph.save_on_cpu(), region():
        out = (x @ x).float().pow(2).sum()
    out.backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_anomaly_mode_and_inference_mode() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), region():
        (x @ x).float().sum().backward()
    with torch.inference_mode(), region():
        out = x @ x
        assert out.dtype is torch.float16
        assert out.is_inference()
