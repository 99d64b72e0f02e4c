"""Casts as many as real autocast makes; float32 inside with the bytes, dtypes and rounding of the low dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.emulation import Numerics, emulate

LOW = torch.bfloat16
MODES: tuple[Numerics, ...] = ("native", "float32")


class Casts(TorchDispatchMode):
    """Counts copies from float32 to the low dtype: what a cast is, whoever makes it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype is LOW and args[0].dtype is torch.float32:
            self.count += 1
        return out


Program = Callable[[Callable[..., Any], Tensor, nn.Parameter], object]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@program
def one_product(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x @ w


@program
def weight_used_three_times(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x @ w @ w @ w


@program
def cache_off(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region(cache_enabled=False):
        x @ w @ w


@program
def cache_cleared(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x @ w
        torch.clear_autocast_cache()
        x @ w


@program
def nested_region_keeps_the_cache(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x @ w
        with region():
            x @ w
        x @ w


@program
def disabled_region_inside(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x @ w
        with region(enabled=False):
            x @ w
        x @ w


@program
def two_regions(region: Any, x: Tensor, w: nn.Parameter) -> None:
    for _ in range(2):
        with region():
            x @ w


@program
def without_gradients(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region(), torch.no_grad():
        x @ w @ w


@program
def without_then_with_gradients(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        with torch.no_grad():
            x @ w
        (x @ w).float().sum().backward()


@program
def views_are_not_cached(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x @ w.t()
        x @ w.t()
        x @ w[:, :2]


@program
def non_leaf_is_not_cached(region: Any, x: Tensor, w: nn.Parameter) -> None:
    doubled = w * 2
    with region():
        x @ doubled
        x @ doubled


@program
def frozen_weight_is_not_cached(region: Any, x: Tensor, w: nn.Parameter) -> None:
    w.requires_grad_(False)
    with region():
        x @ w
        x @ w


@program
def low_weight_is_not_cast(region: Any, x: Tensor, w: nn.Parameter) -> None:
    low = w.detach().to(LOW).requires_grad_()
    with region():
        x @ low


@program
def float64_is_not_cast(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x.double() @ w.double()


@program
def linear_with_bias(region: Any, x: Tensor, w: nn.Parameter) -> None:
    bias = nn.Parameter(torch.ones(4))
    with region():
        F.linear(F.linear(x, w, bias), w, bias)


@program
def backward_inside(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        (x @ w).float().sum().backward()
        x @ w


@program
def changed_in_place_between(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        x @ w
        with torch.no_grad():
            w.add_(1)
        x @ w


@program
def another_parameter_in_its_place(region: Any, x: Tensor, w: nn.Parameter) -> None:
    del w
    with region():
        for _ in range(3):
            x @ nn.Parameter(torch.ones(4, 4))


@program
def checkpointed(region: Any, x: Tensor, w: nn.Parameter) -> None:
    with region():
        out = torch.utils.checkpoint.checkpoint(lambda value: value @ w @ w, x, use_reentrant=False)
    out.float().sum().backward()


def casts(device: str, run: Program, *, emulated: bool) -> tuple[int, Tensor | None]:
    torch.manual_seed(0)
    weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(3, 4)
    with Casts() as counter:
        if emulated:
            with emulate(device):
                run(lambda **settings: torch.autocast(device, dtype=LOW, **settings), x, weight)
        else:
            run(lambda **settings: torch.autocast(device, dtype=LOW, **settings), x, weight)
    return counter.count, weight.grad


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "mps"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_cast_counts_are_those_of_real_autocast(name: str, device: str) -> None:
    run = PROGRAMS[name]
    expected, gradient = casts("cpu", run, emulated=False)
    actual, other = casts(device, run, emulated=True)
    assert actual == expected
    assert (gradient is None) == (other is None)
    if gradient is not None and other is not None:
        assert torch.equal(gradient, other)


def test_the_programs_tell_caches_apart() -> None:
    """Not all alike: were the cache never used, or never cleared, some count would differ."""
    counts = {name: casts("cpu", run, emulated=False)[0] for name, run in PROGRAMS.items()}
    assert counts["one_product"] == counts["weight_used_three_times"] == 2
    assert counts["cache_off"] == 3
    assert counts["cache_cleared"] == counts["two_regions"] == 4


# --- Float32 inside. ------------------------------------------------------------------------------------------------


class Bytes:
    """What autograd keeps, by storage: two views of one storage count once, as they do in memory."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []
        self.storages: dict[int, int] = {}

    def pack(self, tensor: Tensor) -> int:
        self.kept.append(tensor)
        self.storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return len(self.kept) - 1

    def unpack(self, index: int) -> Tensor:
        return self.kept[index]

    @property
    def total(self) -> int:
        return sum(self.storages.values())


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def attention(x: Tensor, w: Tensor) -> Tensor:
    heads = (x @ w).view(2, 3, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads)


FORWARDS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "matrix product": (product, (5, 8), (8, 8)),
    "batched product": (product, (2, 5, 8), (2, 8, 4)),
    "broadcast product": (product, (2, 3, 5, 8), (8, 4)),
    "linear": (F.linear, (5, 8), (6, 8)),
    "linear, 3-d": (F.linear, (2, 5, 8), (6, 8)),
    "linear with bias": (lambda x, w: F.linear(x, w, w[:, 0]), (5, 8), (6, 8)),
    "of a transposed weight": (lambda x, w: x @ w.t(), (5, 8), (6, 8)),
    "of a slice": (lambda x, w: x[:, ::2] @ w, (5, 8), (4, 4)),
    "convolution": (F.conv2d, (2, 3, 6, 6), (4, 3, 3, 3)),
    "transposed convolution": (F.conv_transpose2d, (2, 3, 6, 6), (3, 4, 3, 3)),
    "einsum": (lambda x, w: torch.einsum("bij,bjk->bik", x, w), (2, 5, 8), (2, 8, 4)),
    "baddbmm": (lambda x, w: torch.baddbmm(x[:, :, :4], x, w), (2, 5, 8), (2, 8, 4)),
    "addmm": (lambda x, w: torch.addmm(x[0, :4], x, w), (5, 8), (8, 4)),
    "attention": (attention, (2, 3, 8), (8, 8)),
}


def run_forward(
    name: str, numerics: Numerics, dtype: torch.dtype
) -> tuple[Bytes, Tensor, tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    forward, *shapes = FORWARDS[name]
    torch.manual_seed(0)
    # Non-leaves in the low dtype: their gradients are those that the op gives.
    inputs = tuple(torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
    saved = Bytes()
    with (
        emulate("cuda", numerics=numerics),
        torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack),
        torch.autocast("cuda", dtype=dtype),
    ):
        out = forward(*inputs)
    gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
    return saved, out, gradients, (inputs[0], inputs[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORWARDS)
def test_float32_inside_saves_what_the_low_dtype_saves(name: str, dtype: torch.dtype) -> None:
    native, out, gradients, _ = run_forward(name, "native", dtype)
    wide, other, others, _ = run_forward(name, "float32", dtype)
    assert wide.total == native.total > 0
    statistics = {tensor.ndim for tensor in wide.kept if tensor.dtype is torch.float32}
    assert statistics <= ({3} if name == "attention" else set())
    assert other.dtype is out.dtype is dtype
    assert [g.dtype for g in others] == [g.dtype for g in gradients] == [dtype, dtype]
    assert other.stride() == out.stride()
    eps = torch.finfo(dtype).eps
    for one, two in zip((out, *gradients), (other, *others), strict=True):
        torch.testing.assert_close(two.float(), one.float(), rtol=8 * eps, atol=8 * eps * one.abs().max().item())


def test_float32_inside_rounds_once() -> None:
    _, out, (x_gradient, w_gradient), (x, w) = run_forward("matrix product", "float32", torch.float16)
    ones = torch.ones_like(out).float()
    assert torch.equal(out, (x.float() @ w.float()).half())
    assert torch.equal(x_gradient, (ones @ w.float().T).half())
    assert torch.equal(w_gradient, (x.float().T @ ones).half())


def test_float32_inside_differs_from_the_cpu_kernels_somewhere() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 2, 33, 16)
    found = []
    for numerics in MODES:
        with emulate("cuda", numerics=numerics), torch.autocast("cuda", dtype=torch.bfloat16):
            found.append(F.scaled_dot_product_attention(q, q, q))
    assert not torch.equal(*found)


def test_float32_inside_refuses_what_was_changed_since() -> None:
    for numerics in MODES:
        x = torch.randn(4, 4, dtype=torch.float16)
        w = torch.randn(4, 4, dtype=torch.float16, requires_grad=True)
        with emulate("cuda", numerics=numerics), torch.autocast("cuda", dtype=torch.float16):
            out = x @ w
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_float32_inside_leaves_mixed_dtypes_to_the_op() -> None:
    with emulate("cuda", numerics="float32"), torch.autocast("cuda", enabled=False), pytest.raises(RuntimeError):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2).half())


def test_float32_inside_differentiates_twice_and_under_transforms() -> None:
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4)
    with emulate("cuda", numerics="float32"), torch.autocast("cuda", dtype=torch.bfloat16):
        (gradient,) = torch.autograd.grad((x @ w).float().pow(2).sum(), w, create_graph=True)
        per_sample = torch.vmap(torch.func.grad(lambda v, row: (row @ v).float().pow(2).sum()), (None, 0))(
            w.detach(), x
        )
    (second,) = torch.autograd.grad(gradient.sum(), w)
    assert torch.isfinite(second).all()
    assert second.abs().sum() > 0
    torch.testing.assert_close(per_sample.sum(0), gradient.detach(), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_fused_cells_save_low_tensors_only(kind: str) -> None:
    saved = Bytes()
    net = getattr(nn, kind)(4, 3)
    with (
        emulate("cuda"),
        torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack),
        torch.autocast("cuda", dtype=torch.float16),
    ):
        out, _ = net(torch.randn(5, 2, 4))
    assert {tensor.dtype for tensor in saved.kept} == {torch.float16}
    (gradient,) = torch.autograd.grad(out.float().pow(2).sum(), net.weight_hh_l0, create_graph=True)
    (second,) = torch.autograd.grad(gradient.pow(2).sum(), net.weight_ih_l0)
    assert torch.isfinite(second).all()
