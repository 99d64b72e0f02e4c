"""Planted faults in the ranges of ops: kernels that overflow, lose an eps, flush or clamp, and who notices each.

A fault is a function that stands for another on 16-bit tensors; its own name is the id of the fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from amp_checks.core import CastPolicy
from amp_checks.families.ops.mutants.faults import removed, with_rule
from amp_checks.families.ranges import composed
from amp_checks.records import cast_policy
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import LOW

_SAFE = "check_safe_range"
_INSIDE = "check_finite_inside"
_ZERO = "check_zero_inputs"


class _OnLow(TorchFunctionMode):
    """Calls of a function with a 16-bit tensor go to a faulty one."""

    def __init__(self, function: Callable[..., Any], faulty: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.faulty = faulty

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        meant = self.faulty if func is self.function and args[0].dtype in LOW else func
        return meant(*args, **(kwargs or {}))


def _float16(backend: Backend) -> bool:
    return backend.dtype == "float16"


def _everywhere(_: Backend) -> bool:
    return True


def _in_place_of(
    function: Callable[..., Any], fault: str, case: str, *killed_by: str, **fields: Any
) -> Callable[[Callable[..., Any]], Mutant]:
    """Plant what is decorated in place of a function of torch for 16-bit tensors, under AMP: references run without.

    The rest is as of `Mutant`, the case without its prefix; unless given, ``applies`` is on float16.
    """

    def made(faulty: Callable[..., Any]) -> Mutant:
        @contextmanager
        def plant(backend: Backend) -> Iterator[Backend]:
            @contextmanager
            def activate() -> Iterator[None]:
                with backend.activate(), _OnLow(function, faulty):
                    yield

            yield dataclasses.replace(backend, activate=activate)

        name = faulty.__name__.replace("_", "-")
        given = {"applies": _float16, **fields}
        return Mutant(
            id=name, family="fp32-only", fault=fault, plant=plant, case=f"range-{case}", killed_by=killed_by, **given
        )

    return made


@_in_place_of(torch.mean, "mean sums in the low dtype before it divides", "mean-long", _SAFE, _INSIDE)
def mean_sums_in_16_bits(x: torch.Tensor) -> torch.Tensor:
    return x.sum().to(x.dtype) / x.numel()


@_in_place_of(
    torch.softmax,
    "softmax does not subtract the largest element before exp",
    *("softmax-long", _SAFE, _INSIDE),
    applies=_everywhere,
)
def softmax_without_shift(x: torch.Tensor, dim: int) -> torch.Tensor:
    exponentials = x.exp()
    return exponentials / exponentials.sum(dim, keepdim=True)


@_in_place_of(
    torch.linalg.vector_norm, "the norm squares and sums in the low dtype", "norm-long", _SAFE, _INSIDE, _ZERO
)
def norm_without_scaling(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum().to(x.dtype).sqrt()


@_in_place_of(functional.layer_norm, "layer norm takes its eps for 0", "layer_norm-eps-1e-12", _SAFE, _ZERO)
def layer_norm_loses_eps(x: torch.Tensor, shape: torch.Size, **_: float) -> torch.Tensor:
    return functional.layer_norm(x, shape, eps=0.0)


@_in_place_of(
    functional.layer_norm,
    "layer norm computes its variance in the low dtype",
    *("layer_norm-eps-1e-12", _SAFE, _INSIDE, _ZERO),
)
def layer_norm_variance_in_16_bits(x: torch.Tensor, _: torch.Size, *, eps: float, **_others: None) -> torch.Tensor:
    return composed.layer_norm_by_hand(x, eps=eps)


@_in_place_of(
    torch.exp2, "what overflows becomes the largest number instead of inf: finite, and wrong in silence", "exp2", _SAFE
)
def overflow_clamped(x: torch.Tensor) -> torch.Tensor:
    return torch.exp2(x).clamp(max=torch.finfo(x.dtype).max)


@_in_place_of(torch.exp2, "exp2 rounds its float16 input to bfloat16", "exp2", _SAFE)
def input_rounded_to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return torch.exp2(x.bfloat16().to(x.dtype))


def _flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(x), x)


@_in_place_of(torch.sqrt, "subnormal inputs are taken for 0", "sqrt", _SAFE)
def subnormal_inputs_flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(_flushed(x))


class _FlushesGradient(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _flushed(gradient)


@_in_place_of(torch.square, "subnormal gradients become 0", "square", _SAFE)
def subnormal_gradients_flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.square(private.apply_function(_FlushesGradient, x))


@_in_place_of(functional.gelu, "gelu gives NaN between 200 and 300", "gelu", _SAFE, _INSIDE)
def hole_in_the_range(x: torch.Tensor) -> torch.Tensor:
    found = functional.gelu(x)
    return torch.where((x.abs() > 200) & (x.abs() < 300), torch.full_like(found, torch.nan), found)


# The pattern that gelu's range is measured with has a positive sum; which others have depends on the seed of the run.
@_in_place_of(functional.gelu, "gelu gives NaN for inputs whose sum is negative", "gelu", _INSIDE, full=True)
def some_inputs_give_nan(x: torch.Tensor) -> torch.Tensor:
    found = functional.gelu(x)
    return torch.where(x.float().sum() < 0, torch.full_like(found, torch.nan), found)


@_in_place_of(functional.layer_norm, "layer norm of zeros is 0 / 0", "layer_norm-eps-1e-12", _ZERO)
def zeros_give_nan(x: torch.Tensor, shape: torch.Size, *, eps: float, **_: None) -> torch.Tensor:
    found = functional.layer_norm(x, shape, eps=eps)
    return torch.where((x == 0).all(), torch.full_like(found, torch.nan), found)


@_in_place_of(
    functional.scaled_dot_product_attention,
    "attention of a row that masks every key is 0 / 0",
    *("scaled_dot_product_attention-row-masked-bool", _SAFE, _INSIDE, _ZERO),
    applies=_everywhere,
)
def masked_row_is_nan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    found: torch.Tensor = scores.softmax(-1).to(v.dtype) @ v
    return found


@_in_place_of(
    torch.square,
    "the op computes in float32 in silence: its row states a limit that is no longer there",
    *("square", _SAFE),
    applies=lambda backend: backend.id == "cpu-float16",
)
def limit_is_gone(x: torch.Tensor) -> torch.Tensor:
    return torch.square(x.float())


def _exp_in_fp32(backend: Backend) -> bool:
    return _float16(backend) and cast_policy.of("exp", backend.device_type) is CastPolicy.FP32


exp_rule_removed = Mutant(
    id="exp-rule-removed-shrinks-its-range",
    family="fp32-only",
    fault="autocast no longer runs exp in FP32",
    plant=with_rule("exp", removed),
    case="range-exp",
    killed_by=(_SAFE, _INSIDE),
    applies=_exp_in_fp32,
)

MUTANTS: tuple[Mutant, ...] = tuple(found for found in list(globals().values()) if isinstance(found, Mutant))
"""Every fault of this file, in its order."""
