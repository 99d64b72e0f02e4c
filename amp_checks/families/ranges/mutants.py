"""Planted faults in the ranges of ops: kernels that overflow, lose an eps, flush or clamp, and who notices each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from amp_checks.core import Backend, CastPolicy
from amp_checks.families.ops.mutants.faults import Plant, removed, with_rule
from amp_checks.families.ranges import composed
from amp_checks.records import cast_policy
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api import private
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


def _faulty(function: Callable[..., Any], faulty: Callable[..., Any]) -> Plant:
    """The function is faulty for 16-bit tensors, under AMP: the references are computed without."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        @contextmanager
        def activate() -> Iterator[None]:
            with backend.activate(), _OnLow(function, faulty):
                yield

        yield dataclasses.replace(backend, activate=activate)

    return plant


def _float16(backend: Backend) -> bool:
    return backend.dtype == "float16"


def _cpu_float16(backend: Backend) -> bool:
    return backend.id == "cpu-float16"


def _exp_in_fp32(backend: Backend) -> bool:
    return _float16(backend) and cast_policy.of("exp", backend.device_type) is CastPolicy.FP32


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.sum().to(x.dtype) / x.numel()


def _softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    exponentials = x.exp()
    return exponentials / exponentials.sum(dim, keepdim=True)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum().to(x.dtype).sqrt()


def _without_eps(x: torch.Tensor, shape: torch.Size, **_: float) -> torch.Tensor:
    return functional.layer_norm(x, shape, eps=0.0)


def _in_16_bits(x: torch.Tensor, _: torch.Size, *, eps: float, **_others: None) -> torch.Tensor:
    return composed.layer_norm_by_hand(x, eps=eps)


def _clamped(x: torch.Tensor) -> torch.Tensor:
    return torch.exp2(x).clamp(max=torch.finfo(x.dtype).max)


def _of_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return torch.exp2(x.bfloat16().to(x.dtype))


def _flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(x), x)


class _FlushesGradient(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _flushed(gradient)


def _with_hole(x: torch.Tensor) -> torch.Tensor:
    found = functional.gelu(x)
    return torch.where((x.abs() > 200) & (x.abs() < 300), torch.full_like(found, torch.nan), found)


def _nan_of_negative_sums(x: torch.Tensor) -> torch.Tensor:
    """The pattern that gelu's range is measured with has a positive sum; the other one has not."""
    found = functional.gelu(x)
    return torch.where(x.float().sum() < 0, torch.full_like(found, torch.nan), found)


def _nan_of_zeros(x: torch.Tensor, shape: torch.Size, *, eps: float, **_: None) -> torch.Tensor:
    found = functional.layer_norm(x, shape, eps=eps)
    return torch.where((x == 0).all(), torch.full_like(found, torch.nan), found)


def _row_is_nan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    found: torch.Tensor = scores.softmax(-1).to(v.dtype) @ v
    return found


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="mean-sums-in-16-bits",
        family="fp32-only",
        fault="mean sums in the low dtype before it divides",
        plant=_faulty(torch.mean, _mean),
        case="range-mean-long",
        killed_by=(_SAFE, _INSIDE),
        applies=_float16,
    ),
    Mutant(
        id="softmax-without-shift",
        family="fp32-only",
        fault="softmax does not subtract the largest element before exp",
        plant=_faulty(torch.softmax, _softmax),
        case="range-softmax-long",
        killed_by=(_SAFE, _INSIDE),
    ),
    Mutant(
        id="norm-without-scaling",
        family="fp32-only",
        fault="the norm squares and sums in the low dtype",
        plant=_faulty(torch.linalg.vector_norm, _norm),
        case="range-norm-long",
        killed_by=(_SAFE, _INSIDE, _ZERO),
        applies=_float16,
    ),
    Mutant(
        id="layer-norm-loses-eps",
        family="fp32-only",
        fault="layer norm takes its eps for 0",
        plant=_faulty(functional.layer_norm, _without_eps),
        case="range-layer_norm-eps-1e-12",
        killed_by=(_SAFE, _ZERO),
        applies=_float16,
    ),
    Mutant(
        id="layer-norm-variance-in-16-bits",
        family="fp32-only",
        fault="layer norm computes its variance in the low dtype",
        plant=_faulty(functional.layer_norm, _in_16_bits),
        case="range-layer_norm-eps-1e-12",
        killed_by=(_SAFE, _INSIDE, _ZERO),
        applies=_float16,
    ),
    Mutant(
        id="overflow-clamped",
        family="fp32-only",
        fault="what overflows becomes the largest number instead of inf: finite, and wrong in silence",
        plant=_faulty(torch.exp2, _clamped),
        case="range-exp2",
        killed_by=(_SAFE,),
        applies=_float16,
    ),
    Mutant(
        id="input-rounded-to-bfloat16",
        family="fp32-only",
        fault="exp2 rounds its float16 input to bfloat16",
        plant=_faulty(torch.exp2, _of_bfloat16),
        case="range-exp2",
        killed_by=(_SAFE,),
        applies=_float16,
    ),
    Mutant(
        id="subnormal-inputs-flushed",
        family="fp32-only",
        fault="subnormal inputs are taken for 0",
        plant=_faulty(torch.sqrt, lambda x: torch.sqrt(_flushed(x))),
        case="range-sqrt",
        killed_by=(_SAFE,),
        applies=_float16,
    ),
    Mutant(
        id="subnormal-gradients-flushed",
        family="fp32-only",
        fault="subnormal gradients become 0",
        plant=_faulty(torch.square, lambda x: torch.square(private.apply_function(_FlushesGradient, x))),
        case="range-square",
        killed_by=(_SAFE,),
        applies=_float16,
    ),
    Mutant(
        id="hole-in-the-range",
        family="fp32-only",
        fault="gelu gives NaN between 200 and 300",
        plant=_faulty(functional.gelu, _with_hole),
        case="range-gelu",
        killed_by=(_SAFE, _INSIDE),
        applies=_float16,
    ),
    Mutant(
        id="some-inputs-give-nan",
        family="fp32-only",
        fault="gelu gives NaN for inputs whose sum is negative",
        plant=_faulty(functional.gelu, _nan_of_negative_sums),
        case="range-gelu",
        killed_by=(_INSIDE,),
        applies=_float16,
        full=True,  # which inputs have such a sum depends on the seed of the run
    ),
    Mutant(
        id="zeros-give-nan",
        family="fp32-only",
        fault="layer norm of zeros is 0 / 0",
        plant=_faulty(functional.layer_norm, _nan_of_zeros),
        case="range-layer_norm-eps-1e-12",
        killed_by=(_ZERO,),
        applies=_float16,
    ),
    Mutant(
        id="masked-row-is-nan",
        family="fp32-only",
        fault="attention of a row that masks every key is 0 / 0",
        plant=_faulty(functional.scaled_dot_product_attention, _row_is_nan),
        case="range-scaled_dot_product_attention-row-masked-bool",
        killed_by=(_SAFE, _INSIDE, _ZERO),
    ),
    Mutant(
        id="limit-is-gone",
        family="fp32-only",
        fault="the op computes in float32 in silence: its row states a limit that is no longer there",
        plant=_faulty(torch.square, lambda x: torch.square(x.float())),
        case="range-square",
        killed_by=(_SAFE,),
        applies=_cpu_float16,
    ),
    Mutant(
        id="exp-rule-removed-shrinks-its-range",
        family="fp32-only",
        fault="autocast no longer runs exp in FP32",
        plant=with_rule("exp", removed),
        case="range-exp",
        killed_by=(_SAFE, _INSIDE),
        applies=_exp_in_fp32,
    ),
)
