"""Slightly wrong 16-bit kernels: results 1.6 % too large, one value 3 % too large, computed in the other 16-bit dtype.

Each spoils the device's own kernel of one op, with autocast and without, so that only float64 tells it from the right
one. `KERNELS` says for each kernel which case runs it and which checks must see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from amp_checks.core import CastPolicy
from amp_checks.families.ops.entry import overload
from amp_checks.families.ops.inputs import map_leaves
from amp_checks.families.ops.mutants.faults import Plant
from amp_checks.records import cast_policy
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import LOW

Honest = Callable[..., Any]
Spoil = Callable[[Honest, tuple[Any, ...], dict[str, Any]], Any]
"""From the honest kernel and its arguments to what the spoilt one gives."""


def _halves(structure: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(structure)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dtype in LOW]


def _as_declared(value: Any, kind: str) -> Any:
    """The value, or the tensor that the op declares where a number was given."""
    return torch.tensor(value) if kind == "Tensor" and isinstance(value, int | float) else value


def too_large(honest: Honest, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every 16-bit result 1.6 % too large."""
    results = honest(*args, **kwargs)
    for result in _halves(results):
        result.copy_(result.float() * 1.016)
    return results


def one_off(honest: Honest, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One value of every 16-bit result 3 % too large: that in the middle."""
    results = honest(*args, **kwargs)
    for result in _halves(results):
        factors = torch.ones(result.numel())
        factors[result.numel() // 2] = 1.03
        result.copy_(result.float() * factors.reshape(result.shape))
    return results


def in_the_other(honest: Honest, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computed in bfloat16 where float16 is due, and the other way round."""
    given = _halves((args, kwargs))[0].dtype
    other = torch.bfloat16 if given is torch.float16 else torch.float16
    arguments = map_leaves(lambda t: t.to(other) if t.dtype is given else t, (args, kwargs), torch.Tensor)
    results = honest(*arguments[0], **arguments[1])
    for before, after in zip(tree_leaves((args, kwargs)), tree_leaves(arguments), strict=True):
        if isinstance(before, torch.Tensor) and after is not before and after is results:  # an out= or in-place form
            return before.copy_(after)
    return map_leaves(lambda t: t.to(given) if t.dtype is other else t, results, torch.Tensor)


LARGE, ONE_OFF, OTHER = "large", "one-off", "other-dtype"
WAYS: dict[str, tuple[str, Spoil]] = {
    LARGE: ("gives results 1.6 % too large", too_large),
    ONE_OFF: ("gives one value 3 % too large", one_off),
    OTHER: ("computes in the other 16-bit dtype", in_the_other),
}


def spoilt(op: str, spoil: Spoil, *, in_backward: bool = False) -> Plant:
    """The kernel of an op spoilt for 16-bit inputs; ``in_backward``: only in backward passes."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        device = "CPU" if backend.emulated else backend.device_type.upper()
        right = private.kernel_of(op, device)
        types = private.argument_types(overload(op))
        spoiling = False

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal spoiling

            def honest(*given: Any, **named: Any) -> Any:
                return right(keys, *map(_as_declared, given, types), **named)

            forward = private.running_node() is None
            if spoiling or (in_backward and forward) or not _halves((args, kwargs)):
                return honest(*args, **kwargs)
            spoiling = True  # what spoils may run the op itself
            try:
                return spoil(honest, args, kwargs)
            finally:
                spoiling = False

        with private.kernel(op, device, kernel, with_keys=True):
            yield backend

    return plant


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to be spoilt.

    Attributes:
        op: the overload whose kernel it is.
        case: the case that runs it.
        kills: the checks that see it.
        ways: how it is spoilt, names of `WAYS`.
        in_backward: spoilt in backward passes alone.
        rule: the overload whose policy says whether the case runs in 16 bits at all; the case's own where empty.
    """

    op: str
    case: str
    kills: tuple[str, ...]
    ways: tuple[str, ...] = tuple(WAYS)
    in_backward: bool = False
    rule: str = ""

    def runs_low(self, backend: Backend) -> bool:
        policies = CastPolicy.LOWER_PRECISION_FP, CastPolicy.PROMOTE, CastPolicy.UNLISTED
        return cast_policy.of(self.rule or self.case, backend.device_type) in policies


OUTPUT, GRADIENT = ("check_error",), ("check_gradient_error",)
BOTH = OUTPUT + GRADIENT
FORM, SPELLING = ("check_form_error",), ("check_spelling_error",)


def _forward(op: str, *ways: str, case: str = "", rule: str = "", kills: tuple[str, ...] = OUTPUT) -> Kernel:
    return Kernel(op, case or op, kills, ways or tuple(WAYS), rule=rule)


def _backward(op: str, case: str, *ways: str) -> Kernel:
    return Kernel(op, case, GRADIENT, ways or tuple(WAYS), in_backward=True)


PRODUCTS = (
    _forward("mm", kills=BOTH),
    _forward("bmm", LARGE, ONE_OFF, kills=BOTH),
    _forward("bmm", OTHER, case="einsum", kills=BOTH),
    _forward("mv", kills=BOTH),
    _forward("addmm", LARGE, OTHER),
    _forward("addmm", ONE_OFF, case="linear"),
    _forward("baddbmm", ONE_OFF),
    _forward("addmv", LARGE),
    _forward("addr", OTHER),
    _forward("_prelu_kernel", LARGE, OTHER, case="prelu"),
    _forward("convolution", case="conv2d"),
    _forward("convolution", ONE_OFF, case="conv1d"),
    _forward("convolution", OTHER, case="conv_transpose2d.input"),
    _forward("conv_tbc", LARGE),
    _forward("_scaled_dot_product_flash_attention_for_cpu", OTHER, case="scaled_dot_product_attention", kills=BOTH),
)

PROMOTED = (
    _forward("dot"),
    _forward("vdot", OTHER),
    _forward("addcmul"),
    _forward("addcdiv", OTHER),
    _forward("atan2", LARGE),
    _forward("cat", LARGE, ONE_OFF),
    _forward("stack", OTHER),
    _forward("linalg_cross", ONE_OFF, case="cross", kills=BOTH),
    _forward("index_copy", LARGE),
    _forward("scatter_add", OTHER),
    _forward("grid_sampler_2d", LARGE, case="grid_sampler"),
)

UNLISTED = (
    _forward("exp", LARGE, OTHER, kills=BOTH),
    _forward("rsqrt", ONE_OFF, kills=BOTH),
    _forward("softplus", OTHER),
    _forward("_softmax", case="softmax.int", kills=BOTH),
    _forward("native_layer_norm", LARGE, case="layer_norm", kills=BOTH),
    _forward("upsample_bilinear2d", ONE_OFF),
    _forward("reflection_pad1d", OTHER),
    _forward("add.Tensor", LARGE),
    _forward("mul.Tensor", ONE_OFF, kills=BOTH),
    _forward("gelu"),
    _forward("silu", OTHER),
    _forward("avg_pool2d", ONE_OFF),
    _forward("embedding", LARGE),
)

REDUCTIONS = (
    _forward("sum", LARGE, OTHER),
    _forward("sum.dim_IntList", ONE_OFF),
    _forward("cumsum", OTHER, kills=BOTH),
    _forward("logsumexp", LARGE, kills=BOTH),
    _forward("linalg_vector_norm", OTHER, kills=BOTH),
    _forward("mean", LARGE, OTHER),
    _forward("mean.dim", ONE_OFF),
    _forward("var.correction", OTHER),
)

BACKWARD = (
    _backward("mm", "mm"),
    _backward("convolution_backward", "conv2d"),
    _backward("_prelu_kernel_backward", "prelu", ONE_OFF, OTHER),
    _backward("native_layer_norm_backward", "layer_norm", LARGE),
    _backward("gelu_backward", "gelu", OTHER),
    _backward("tanh_backward", "tanh", LARGE),
    _backward("avg_pool2d_backward", "avg_pool2d", ONE_OFF),
    _backward("embedding_dense_backward", "embedding", OTHER),
)

WRITTEN = (
    _forward("mm.out", kills=FORM),
    _forward("addmm.out", LARGE, kills=FORM),
    _forward("bmm.out", OTHER, kills=FORM),
    _forward("exp.out", LARGE, kills=FORM),
    _forward("exp_", kills=FORM),
    _forward("mul_.Tensor", OTHER, kills=FORM),
    _forward("cumsum.out", ONE_OFF, kills=FORM),
    _forward("cat.out", OTHER, kills=FORM),
    _forward("mm", LARGE, OTHER, case="torch.mm", kills=SPELLING, rule="mm"),
    _forward("mm", ONE_OFF, case="torch.Tensor.matmul", kills=SPELLING, rule="matmul"),
    _forward("dot", OTHER, case="torch.dot", kills=SPELLING, rule="dot"),
    _forward("cat", LARGE, case="torch.cat", kills=SPELLING, rule="cat"),
)

KERNELS = (*PRODUCTS, *PROMOTED, *UNLISTED, *REDUCTIONS, *BACKWARD, *WRITTEN)


def _mutants() -> Iterator[Mutant]:
    for kernel in KERNELS:
        for way in kernel.ways:
            text, spoil = WAYS[way]
            where = " in backward" if kernel.in_backward else ""
            yield Mutant(
                id=f"kernel-{kernel.op}-{way}" + ("-in-backward" if where else "") + f"-{kernel.case}",
                family="ops",
                fault=f"the 16-bit kernel of {kernel.op}{where} {text}",
                plant=spoilt(kernel.op, spoil, in_backward=kernel.in_backward),
                case=kernel.case,
                killed_by=kernel.kills,
                applies=kernel.runs_low,
            )


MUTANTS = tuple(_mutants())
