"""Custom autograd functions with ``custom_fwd`` and ``custom_bwd``, and function transforms, under a region."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn import functional

from amp_checks.families.ops.regions.program import Seen, Topic, low, named, outcome, program, tensor, weight
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import same_bits

Function = TypeVar("Function", bound=Callable[..., Any])
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


@program(
    Topic.FUNCTIONS,
    {"seen": "forward low of float32, backward low"},
    source="custom_bwd runs backward in the state of forward: pytorch issue 87979",
)
def custom_function(backend: Backend) -> Seen:
    function, seen = _custom(backend)
    with backend.region():
        out = function(tensor(backend, 4, 4).requires_grad_())
    out.float().sum().backward()
    return {"seen": ", ".join(seen)}


@program(
    Topic.FUNCTIONS,
    {"inside": "forward float32 of float32, backward float32", "outside": "forward low of low, backward low"},
    source="custom_fwd(cast_inputs=): casts and disables autocast inside a region, does nothing outside",
)
def custom_function_casting(backend: Backend) -> Seen:
    function, seen = _custom(backend, cast_inputs=torch.float32)
    (x,) = low(backend, tensor(backend, 4, 4))
    with backend.region():
        function(x.requires_grad_()).sum().backward()
    inside = ", ".join(seen)
    seen.clear()
    function(x.detach().requires_grad_()).sum().backward()
    return {"inside": inside, "outside": ", ".join(seen)}


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@program(
    Topic.FUNCTIONS,
    {
        "list": "list float32 float32",
        "dict": "dict float32",
        "OrderedDict": "OrderedDict float32",
        "namedtuple": "_Pair float32 float32",
    },
    source="custom_fwd(cast_inputs=) casts tensors in containers and keeps the containers",
)
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

    (x,) = low(backend, tensor(backend, 2))

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


@program(
    Topic.FUNCTIONS,
    {"backward": "no exception", "attributes left on the input": False},
    source="pytorch issues 132388 and 137033",
)
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


@program(Topic.FUNCTIONS, {"device object": "ValueError: Expected `device_type` of type `str`"})
def custom_function_errors(backend: Backend) -> Seen:
    device: Any = torch.device(backend.device_type)
    return {"device object": outcome(lambda: torch.amp.custom_fwd(device_type=device)).partition(",")[0]}


@program(
    Topic.TRANSFORMS,
    {"mm": "low", "mm equals that of inputs cast by hand": True},
    source="casting by hand with autocast off",
)
def vmapped(backend: Backend) -> Seen:
    a, b = tensor(backend, 3, 4, 5), tensor(backend, 5, 6, seed="right")
    with backend.region():
        got = torch.vmap(torch.mm, in_dims=(0, None))(a, b)
    expected = torch.vmap(torch.mm, in_dims=(0, None))(*low(backend, a, b))
    return {"mm": named(backend, got.dtype), "mm equals that of inputs cast by hand": same_bits(got, expected)}


@program(
    Topic.TRANSFORMS,
    {"func.grad": "float32", "func.grad equals that through casts by hand": True, "jvp": "low low"},
    source="casting by hand with autocast off",
)
def func_transforms(backend: Backend) -> Seen:
    w, x = tensor(backend, 4, 4, seed="weight"), tensor(backend, 2, 4)

    def loss(value: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, value).float().square().sum()

    def hand(value: torch.Tensor) -> torch.Tensor:
        return functional.linear(*low(backend, x, value)).float().square().sum()

    with backend.region():
        gradient = torch.func.grad(loss)(w)
        jvp: Any = torch.func.jvp
        out, tangent = jvp(lambda v: functional.linear(x, v), (w,), (torch.ones_like(w),))
    return {
        "func.grad": dtype_name(gradient.dtype),
        "func.grad equals that through casts by hand": same_bits(gradient, torch.func.grad(hand)(w)),
        "jvp": f"{named(backend, out.dtype)} {named(backend, tangent.dtype)}",
    }


@program(
    Topic.TRANSFORMS,
    {"layer_norm": "no exception", "group_norm": "no exception", "batch_norm": "no exception"},
    source="gradients as in a loop: pytorch issue 184890",
)
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
