"""Gradients, custom functions, function transforms, compilation and mixed dtypes under regions, as small programs.

Written as those of `amp_checks.families.ops.regions.programs`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from amp_checks.core import Backend
from amp_checks.families.ops.regions.programs import Seen, named, outcome, tensor, weight
from amp_checks.torch_api import private
from amp_checks.torch_api.numerics import dtype_name, error_ratio, same_bits, seeded

SAME_BUT_FOR_ORDER = 4.0
"""Units of the result's own rounding that generated code may be off. Measured: 0.0 at both sizes, torch 2.13.0."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _low(backend: Backend, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(t.to(backend.low_dtype) for t in tensors)


# --- Gradients.
# --------------------------------------------------------------------------------------------------------


def gradient_dtypes(backend: Backend) -> Seen:
    w, x = weight(backend, 4, 4), tensor(backend, 2, 4).requires_grad_()
    with backend.region():
        loss = functional.linear(x, w).float().square().sum()
    loss.backward()
    assert w.grad is not None
    assert x.grad is not None
    hand = functional.linear(*_low(backend, x, w)).float().square().sum()
    expected = torch.autograd.grad(hand, [w, x])
    return {
        "of a parameter": dtype_name(w.grad.dtype),
        "of an input": dtype_name(x.grad.dtype),
        "equal to those through casts by hand": same_bits(w.grad, expected[0]) and same_bits(x.grad, expected[1]),
    }


def backward_inside(backend: Backend) -> Seen:
    def gradients(*, inside: bool) -> tuple[torch.Tensor, ...]:
        w, x = weight(backend, 4, 4), tensor(backend, 2, 4)
        with backend.region():
            loss = torch.softmax(functional.linear(x, w), 1).square().sum()
            if inside:
                return torch.autograd.grad(loss, [w])
        return torch.autograd.grad(loss, [w])

    return {"inside equals outside": same_bits(gradients(inside=True)[0], gradients(inside=False)[0])}


def double_backward(backend: Backend) -> Seen:
    w, x = weight(backend, 4, 4), tensor(backend, 2, 4).requires_grad_()

    def second(run: Callable[[], torch.Tensor]) -> torch.Tensor:
        (first,) = torch.autograd.grad(run().float().pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), w)[0]

    def region() -> torch.Tensor:
        with backend.region():
            return functional.linear(x, w)

    got = second(region)
    expected = second(lambda: functional.linear(*_low(backend, x, w)))
    return {"dtype": dtype_name(got.dtype), "equal to that through casts by hand": same_bits(got, expected)}


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


# --- Custom functions.
# -------------------------------------------------------------------------------------------------


_Decorator = Callable[[Function], Function]


def _states(backend: Backend, **options: Any) -> tuple[_Decorator[Any], _Decorator[Any]]:
    """The decorators of a custom function's forward and backward."""
    forward: Any = torch.amp.custom_fwd(device_type=backend.device_type, **options)
    backward: Any = torch.amp.custom_bwd(device_type=backend.device_type)
    return forward, backward


def _custom(backend: Backend, **options: Any) -> tuple[Any, list[str]]:
    seen: list[str] = []
    forward_state, backward_state = _states(backend, **options)

    class Product(torch.autograd.Function):
        @staticmethod
        @forward_state
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            out = torch.mm(x, x)
            seen.append(f"forward {named(backend, out.dtype)} of {named(backend, x.dtype)}")
            ctx.save_for_backward(x)
            return out

        @staticmethod
        @backward_state
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            seen.append(f"backward {named(backend, torch.mm(x, x).dtype)}")
            return torch.zeros_like(gradients[0]).to(x.dtype)

    return Product.apply, seen


def custom_function(backend: Backend) -> Seen:
    function, seen = _custom(backend)
    with backend.region():
        out = function(tensor(backend, 4, 4).requires_grad_())
    out.float().sum().backward()
    return {"seen": ", ".join(seen)}


def custom_function_casting(backend: Backend) -> Seen:
    function, seen = _custom(backend, cast_inputs=torch.float32)
    (x,) = _low(backend, tensor(backend, 4, 4))
    with backend.region():
        function(x.requires_grad_()).sum().backward()
    inside = ", ".join(seen)
    seen.clear()
    function(x.detach().requires_grad_()).sum().backward()
    return {"inside": inside, "outside": ", ".join(seen)}


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def custom_function_containers(backend: Backend) -> Seen:
    seen: list[str] = []

    state, _ = _states(backend, cast_inputs=torch.float32)

    @state
    def forward(_: Any, nest: Any) -> None:
        seen.append(type(nest).__name__)
        values = nest.values() if isinstance(nest, dict) else nest
        seen.extend(dtype_name(value.dtype) for value in values)

    class Context:
        pass

    (x,) = _low(backend, tensor(backend, 2))

    def cast(nest: Any) -> str:
        seen.clear()
        with backend.region():
            raised = outcome(lambda: forward(Context(), nest))
        return raised if raised != "no exception" else " ".join(seen)

    return {
        "list": cast([x, x]),
        "dict": cast({"a": x}),
        "OrderedDict": cast(collections.OrderedDict(a=x)),
        "namedtuple": cast(_Pair(x, x)),
    }


def custom_function_setup_context(backend: Backend) -> Seen:
    forward_state, backward_state = _states(backend)

    class Doubled(torch.autograd.Function):
        @staticmethod
        @forward_state
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        @backward_state
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    x = tensor(backend, 3).requires_grad_()
    with backend.region():
        apply: Any = Doubled.apply
        out = apply(x)
    backward = outcome(lambda: out.sum().backward())
    return {"backward": backward, "attributes left on the input": hasattr(x, "_fwd_used_autocast")}


def custom_function_errors(backend: Backend) -> Seen:
    device: Any = torch.device(backend.device_type)
    return {"device object": outcome(lambda: torch.amp.custom_fwd(device_type=device)).partition(",")[0]}


# --- Function transforms.
# ----------------------------------------------------------------------------------------------


def vmapped(backend: Backend) -> Seen:
    a, b = tensor(backend, 3, 4, 5), tensor(backend, 5, 6, seed="right")
    with backend.region():
        got = torch.vmap(torch.mm, in_dims=(0, None))(a, b)
    expected = torch.vmap(torch.mm, in_dims=(0, None))(*_low(backend, a, b))
    return {
        "mm": named(backend, got.dtype),
        "mm equals that of inputs cast by hand": same_bits(got, expected),
    }


def func_transforms(backend: Backend) -> Seen:
    w, x = tensor(backend, 4, 4, seed="weight"), tensor(backend, 2, 4)

    def loss(value: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, value).float().square().sum()

    def hand(value: torch.Tensor) -> torch.Tensor:
        return functional.linear(*_low(backend, x, value)).float().square().sum()

    with backend.region():
        gradient = torch.func.grad(loss)(w)
        jvp: Any = torch.func.jvp
        out, tangent = jvp(lambda v: functional.linear(x, v), (w,), (torch.ones_like(w),))
    return {
        "func.grad": dtype_name(gradient.dtype),
        "func.grad equals that through casts by hand": same_bits(gradient, torch.func.grad(hand)(w)),
        "jvp": f"{named(backend, out.dtype)} {named(backend, tangent.dtype)}",
    }


def vmapped_gradient_of_norms(backend: Backend) -> Seen:
    w, x = weight(backend, 8, 8), tensor(backend, 4, 8).requires_grad_()

    def gradients(norm: Callable[[torch.Tensor], torch.Tensor]) -> str:
        with backend.region():
            out = norm(functional.linear(x, w)).reshape(4, -1)[:, :2]
        directions = torch.ones(3, 4, 2, dtype=out.dtype, device=out.device)

        def one(direction: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(out, x, direction, retain_graph=True)[0]

        looped = torch.stack([one(direction) for direction in directions])
        return outcome(lambda: torch.testing.assert_close(torch.vmap(one)(directions), looped)).partition(":")[0]

    scale, shift = tensor(backend, 8, seed="scale"), tensor(backend, 8, seed="shift")
    return {
        "layer_norm": gradients(lambda h: functional.layer_norm(h, [8], scale, shift)),
        "group_norm": gradients(lambda h: functional.group_norm(h, 2, scale, shift)),
        "batch_norm": gradients(lambda h: functional.batch_norm(h, None, None, scale, shift, training=True)),
    }


# --- Compilation. With aot_eager the graph is captured and cast, and no code is generated. ---------------------------


def _compiled(function: Callable[..., Any], backend: str = "aot_eager") -> Callable[..., Any]:
    torch.compiler.reset()
    made: Callable[..., Any] = torch.compile(function, backend=backend)
    return made


def _both(backend: Backend, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> str:
    """Whether the compiled function gives eager's dtype and values, forward and backward."""

    def run(call: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        leaves = [value.detach().clone().requires_grad_() for value in inputs]
        with backend.region():
            out = call(*leaves)
        return (out, *torch.autograd.grad(out.float().square().sum(), leaves))

    eager, compiled = run(function), run(_compiled(function))
    for name, left, right in zip(("output", *["gradient"] * len(inputs)), eager, compiled, strict=True):
        if left.dtype is not right.dtype:
            return f"{name} {dtype_name(right.dtype)} for {dtype_name(left.dtype)}"
        if not same_bits(left, right):
            return f"{name} off by {(left.double() - right.double()).abs().max().item():.3g}"
    return "as eager"


def compiled_parity(backend: Backend) -> Seen:
    a, b = tensor(backend, 4, 4), tensor(backend, 4, 4, seed="right")

    def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(functional.gelu(functional.linear(x, w)), -1)

    def promoted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.mm(x, w), x])

    def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(torch.mm(x, w), [4]) + functional.mse_loss(x, w)

    def region_within(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(backend.device_type, dtype=backend.low_dtype):
            return torch.mm(x, w)

    return {
        "linear, gelu, softmax": _both(backend, mlp, a, b),
        "cat of low and float32": _both(backend, promoted, a, b),
        "norm and loss": _both(backend, normed, a, b),
        "a region inside the function": _both(backend, region_within, a, b),
    }


def compiled_disabled_region(backend: Backend) -> Seen:
    def island(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(backend.device_type, enabled=False):
            return x.float() @ w.float().T

    return {"disabled region inside": _both(backend, island, tensor(backend, 4, 16), tensor(backend, 16, 16, seed="w"))}


def compiled_default_dtype(backend: Backend) -> Seen:
    device = backend.device_type
    x = tensor(backend, 4, 4)

    def function(value: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device):
            return value @ value

    compiled, before, seen = _compiled(function), torch.get_autocast_dtype(device), []
    try:
        for dtype in (torch.bfloat16, torch.float16):
            torch.set_autocast_dtype(device, dtype)
            seen.append(compiled(x).dtype is function(x).dtype)
    finally:
        torch.set_autocast_dtype(device, before)
    return {"follows the default dtype": all(seen)}


def compiled_mismatch(backend: Backend) -> Seen:
    def function(q: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ q.mT).float(), -1).to(backend.low_dtype) @ q

    q = tensor(backend, 2, 4, 4)
    calls: dict[str, Callable[[], Callable[..., Any]]] = {
        "eager": lambda: function,
        "aot_eager": lambda: _compiled(function),
        # It refuses before it generates code, so it needs no compiler of the machine's.
        "inductor": lambda: _compiled(function, "inductor"),
    }
    with _quiet():
        return {f"{name} refuses": _refuses(made, q) for name, made in calls.items()}


def _refuses(make: Callable[[], Callable[..., Any]], value: torch.Tensor) -> bool:
    return outcome(lambda: make()(value)) != "no exception"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch's compiler logs what it raises."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def generated_with_dynamic_shapes(backend: Backend) -> Seen:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.sum.dim_IntList(torch.einsum("bij,bjk->bik", a, b), [1, 2])  # type: ignore[no-any-return]

    torch.compiler.reset()
    generated: Any = torch.compile(function, dynamic=True, options={"compile_threads": 1})
    seen: Seen = {}
    for size in (16, 33):
        inputs = [tensor(backend, 2, size, size, seed=side) for side in ("left", "right")]
        with backend.region():
            eager, compiled = function(*inputs), generated(*inputs)
        seen[f"size {size}"] = _as_eager(eager, compiled)
    return seen


def _as_eager(eager: torch.Tensor, compiled: torch.Tensor) -> str:
    """Generated code may add in another order: an error of a few units of the result's size."""
    if eager.dtype is not compiled.dtype:
        return f"{dtype_name(compiled.dtype)} for {dtype_name(eager.dtype)}"
    ratio = error_ratio(compiled, eager.double(), run_dtype=eager.dtype)
    return "as eager" if ratio < SAME_BUT_FOR_ORDER else f"off by {ratio:.3g} units"


def traced(backend: Backend) -> Seen:
    x = tensor(backend, 2, 4)
    with seeded("traced"):
        layer = torch.nn.Linear(4, 4).to(backend.device_type)

    def trace(*, cache: bool) -> str:
        with backend.region(cache_enabled=cache), torch.no_grad():
            made: Any = torch.jit.trace(torch.nn.Sequential(layer, layer), x, check_trace=False)
        return named(backend, made(x).dtype)

    return {"with the cache": trace(cache=True), "without": trace(cache=False)}


def graph_casts(backend: Backend) -> Seen:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.mm(x, w), 1)

    with private.fake_tensor_mode(), torch.no_grad():
        x, w = (torch.empty(4, 4, device=backend.device_type) for _ in range(2))
        with backend.region():
            graph = make_fx(function)(x, w)
    given = {
        node.target.name(): named(backend, node.meta["val"].dtype)
        for node in graph.graph.nodes
        if node.op == "call_function"
    }
    return {"mm in the graph": given.get("aten::mm"), "softmax in the graph": given.get("aten::_softmax")}


# --- Dtypes that meet.
# -------------------------------------------------------------------------------------------------


def _dtype_of(backend: Backend, function: Callable[[], torch.Tensor]) -> str:
    found: list[str] = []
    raised = outcome(lambda: found.append(named(backend, function().dtype)))
    return found[0] if found else raised.partition(":")[0]


def low_into_float32(backend: Backend) -> Seen:
    base, square = tensor(backend, 4, 4), tensor(backend, 4, 4, seed="square")
    rows = torch.tensor([0, 1, 2, 3], device=backend.device_type)
    index = torch.zeros(4, 4, dtype=torch.int64, device=backend.device_type)

    def assigned() -> torch.Tensor:
        kept = base.clone()
        kept[rows] = torch.mm(square, square)
        return kept

    with backend.region():
        return {
            "scatter_add": _dtype_of(backend, lambda: base.scatter_add(0, index, torch.mm(square, square))),
            "index_add": _dtype_of(backend, lambda: base.index_add(0, rows, torch.mm(square, square))),
            "index_put": _dtype_of(backend, lambda: base.index_put((rows,), torch.mm(square, square))),
            "assignment to an index": _dtype_of(backend, assigned),
        }


def spectral_norm(backend: Backend) -> Seen:
    with seeded("spectral norm"):
        layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 6)).to(backend.device_type)
    with backend.region():
        return {"a layer with spectral norm": _dtype_of(backend, lambda: layer(tensor(backend, 2, 6)))}


def float64_meets(backend: Backend) -> Seen:
    double, single = tensor(backend, 4, 4).double(), tensor(backend, 4, 4)
    with backend.region():
        return {
            "mm of float64": _dtype_of(backend, lambda: torch.mm(double, double)),
            "linear of float64 and float32": _dtype_of(backend, lambda: functional.linear(double, single)),
            "mse_loss of low and float64": _dtype_of(
                backend, lambda: functional.mse_loss(torch.mm(single, single), double)
            ),
        }


def saturated_cross_entropy(backend: Backend) -> Seen:
    logit, target = tensor(backend, 1).zero_() + 12.0, tensor(backend, 1).zero_()
    with backend.region():
        good = functional.binary_cross_entropy_with_logits(logit.to(backend.low_dtype), target)
        probability = torch.sigmoid(logit.to(backend.low_dtype))
        loss: list[float] = []
    with backend.region():
        raised = outcome(lambda: loss.append(functional.binary_cross_entropy(probability, target).item()))
    return {
        "with logits, loss of logit 12": round(good.item(), 3),
        "of a probability": f"a loss of {loss[0]:.0f}" if loss else raised.partition(":")[0],
    }


PROGRAMS: dict[str, Callable[[Backend], Seen]] = {
    function.__name__: function
    for function in (
        *(gradient_dtypes, backward_inside, double_backward, checkpointed, state_in_backward),
        *(custom_function, custom_function_casting, custom_function_containers),
        *(custom_function_setup_context, custom_function_errors),
        *(vmapped, func_transforms, vmapped_gradient_of_norms),
        *(compiled_parity, compiled_disabled_region, compiled_default_dtype, compiled_mismatch),
        *(generated_with_dynamic_shapes, traced, graph_casts),
        *(low_into_float32, spectral_norm, float64_meets, saturated_cross_entropy),
    )
}
