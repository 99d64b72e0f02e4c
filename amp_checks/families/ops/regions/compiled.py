"""Captured programs: compiled, traced, and as graphs. With aot_eager the graph is cast, and no code is generated."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from amp_checks.families.ops.regions.program import Seen, Topic, held, named, outcome, program, tensor, value
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import error_ratio, same_bits, seeded

SAME_BUT_FOR_ORDER = 4.0
"""Units of the result's own rounding that generated code may be off. Measured: 0.0 at both sizes, torch 2.13.0."""

_COMPILE = "a region graph-breaks under the emulation"


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


@program(
    Topic.COMPILED,
    {
        "linear, gelu, softmax": "as eager",
        "cat of low and float32": "as eager",
        "norm and loss": "as eager",
        "a region inside the function": "as eager",
    },
    source="torch.compile gives eager's results",
    real_only=_COMPILE,
    full=True,
)
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


@program(
    Topic.COMPILED,
    {"disabled region inside": "as eager"},
    source="torch.compile gives eager's results: pytorch issue 179804",
    real_only=_COMPILE,
    full=True,
)
def compiled_disabled_region(backend: Backend) -> Seen:
    def island(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(backend.device_type, enabled=False):
            return x.float() @ w.float().T

    return {"disabled region inside": _both(backend, island, tensor(backend, 4, 16), tensor(backend, 16, 16, seed="w"))}


@program(
    Topic.COMPILED,
    {"follows the default dtype": True},
    source="torch.compile gives eager's results: pytorch pull request 191110",
    real_only=_COMPILE,
    full=True,
)
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


@program(
    Topic.COMPILED,
    {"eager refuses": True, "aot_eager refuses": True, "inductor refuses": True},
    source="torch.compile refuses what eager refuses: pytorch issues 150993 and 171190",
    real_only=_COMPILE,
    full=True,
)
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


@program(
    Topic.COMPILED,
    {"size 16": "as eager", "size 33": "as eager"},
    source="torch.compile gives eager's results: pytorch issue 194329",
    real_only=_COMPILE,
    machine="has-a-cpp-compiler",
    full=True,
)
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


@program(
    Topic.COMPILED,
    {"with the cache": "low", "without": "low"},
    source="pytorch issue 50231",
    real_only="torch.jit.trace looks at memory that emulated tensors do not have",
    full=True,
)
def traced(backend: Backend) -> Seen:
    x = tensor(backend, 2, 4)
    with seeded("traced"):
        layer = torch.nn.Linear(4, 4).to(backend.device_type)

    def trace(*, cache: bool) -> str:
        with backend.region(cache_enabled=cache), torch.no_grad():
            made: Any = torch.jit.trace(torch.nn.Sequential(layer, layer), x, check_trace=False)
        return named(backend, made(x).dtype)

    return {"with the cache": trace(cache=True), "without": trace(cache=False)}


@program(
    Topic.COMPILED,
    {"mm in the graph": "low", "softmax in the graph": "float32"},
    expected_on={"cpu": {"softmax in the graph": "low"}},
    source="the casts of a region are part of a graph that is traced inside it",
)
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


@program(
    Topic.COMPILED,
    {
        "a graph": "_enter_autocast DEVICE low True False; aten.mm.default; _exit_autocast 1",
        "a graph of the graph": "_enter_autocast DEVICE low True False; aten.mm.default; _exit_autocast 1",
        "what it gives": "low",
        "what `as` names in a region that is traced": True,
        "state after it": True,
        "an exception in a region that is traced": "KeyError: 'mine'",
        "state after that": True,
    },
    source="torch.export keeps regions: a graph before dispatch enters and leaves them",
    real_only="a graph before dispatch knows no emulated device",
)
def region_in_graph(backend: Backend) -> Seen:
    device, before, a = backend.device_type, held(backend), tensor(backend, 4, 4)
    named_by_as: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        region = torch.autocast(device, dtype=backend.low_dtype, cache_enabled=False)
        with region as entered:
            named_by_as.append(entered is region)
            return torch.mm(x, x)

    def failing(_: torch.Tensor) -> None:
        with torch.autocast(device, dtype=backend.low_dtype):
            raise KeyError("mine")

    def shown(node: Any) -> str:
        name = getattr(node.target, "__name__", str(node.target))
        if name == "_enter_autocast":
            arguments = [named(backend, arg) if isinstance(arg, torch.dtype) else str(arg) for arg in node.args]
            return f"{name} {' '.join(arguments)}".replace(device, "DEVICE")
        return f"{name} {len(node.args)}" if name == "_exit_autocast" else str(node.target)

    def nodes(graph: Any) -> str:
        return "; ".join(shown(node) for node in graph.graph.nodes if node.op == "call_function")

    def traced(what: Any) -> Any:
        return make_fx(what, pre_dispatch=True)(a)

    return {
        "a graph": value(lambda: nodes(traced(function))),
        "a graph of the graph": value(lambda: nodes(traced(traced(function)))),
        "what it gives": value(lambda: named(backend, traced(function)(a).dtype)),
        "what `as` names in a region that is traced": bool(named_by_as) and all(named_by_as),
        "state after it": held(backend) == before,
        "an exception in a region that is traced": outcome(lambda: traced(failing)),
        "state after that": held(backend) == before,
    }
