"""Measured sizes: error in units of the run dtype, thresholds with their provenance, and seeded inputs.

The unit of op error is ``max|out - ref64| / (eps(run dtype) * max|ref64|)``, with inputs already rounded to what the
op receives. It is flat in the size of the problem, unlike LAPACK's ``n * eps * 30``, under which nothing can fail.
"""

from __future__ import annotations

import dataclasses
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from amp_checks.torch_api import dtypes

dtype_name = dtypes.dtype_name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A bound with its reasons: no bare number judges anything.

    Attributes:
        value: a finding passes when its ratio is below it.
        unit: what a ratio of 1 means.
        healthy: the range measured on correct code.
        weakest_mutant: the fault nearest to the healthy range that the bound must catch, with its measured ratio.
        measured: how both were measured: the command or the test.
    """

    value: float
    unit: str
    healthy: str
    weakest_mutant: str
    measured: str


SALT = "AMP_CHECKS_SEED"
"""The environment variable that gives every seed another value: verdicts must not hang on the data drawn."""


def seed_of(name: str, *, salted: bool = True) -> int:
    """A seed from a name: the same in every process (``hash()`` is not), independent between names; 0 from none.

    ``salted=False`` is for data that an expectation was worked out from: it is the same under every `SALT`.
    """
    salt = os.environ.get(SALT, "") if salted else ""
    return zlib.crc32((salt + name).encode())


@contextmanager
def seeded(seed: str | int) -> Iterator[None]:
    """Global torch RNG seeded from a name or by a number; the CPU's and, where it was started, CUDA's state come back
    on exit.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(
            seed_of(seed) if isinstance(seed, str) else seed + seed_of("") if SALT in os.environ else seed
        )
        yield


def randn(
    *shape: int,
    seed: str,
    salted: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> torch.Tensor:
    """Standard normal tensor of ``shape``, drawn on the CPU in float32 from a generator of its own, then moved.

    Every device and dtype gets the same numbers, and no global random state moves. ``salted``: as of `seed_of`.
    """
    generator = torch.Generator().manual_seed(seed_of(seed, salted=salted))
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def error_ratio(actual: torch.Tensor, reference: torch.Tensor, *, run_dtype: torch.dtype) -> float:
    """``max|actual - reference| / (eps(run_dtype) * max|reference|)``.

    Args:
        actual: the result under test, any floating dtype.
        reference: the same in float64, same shape.
        run_dtype: the dtype in which the op ran; its eps is the unit.

    Returns:
        The ratio. 0.0 for empty tensors; infinity where shapes differ, where the places of NaN, inf and -inf differ, or
        where the reference is all zero and the result is not.
    """
    if actual.shape != reference.shape:
        return math.inf
    if actual.numel() == 0:
        return 0.0
    out = actual.detach().to(device="cpu", dtype=torch.float64)
    ref = reference.detach().to(device="cpu", dtype=torch.float64)
    finite = torch.isfinite(ref)
    if not torch.equal(torch.where(finite, 0.0, ref).nan_to_num(), torch.where(finite, 0.0, out).nan_to_num()):
        return math.inf
    if not torch.equal(torch.isnan(out), torch.isnan(ref)) or not torch.equal(torch.isfinite(out), finite):
        return math.inf
    out, ref = out[finite], ref[finite]
    if ref.numel() == 0:
        return 0.0
    error = (out - ref).abs().max().item()
    scale = ref.abs().max().item()
    if scale == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / (torch.finfo(run_dtype).eps * scale)


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Same dtype, shape and bits: NaN equals the same NaN, and -0.0 does not equal 0.0. Dense tensors only."""
    if actual.dtype is not expected.dtype or actual.shape != expected.shape:
        return False
    # clone, not contiguous(): that keeps the strides of a tensor with a single element, which no view to bytes allows.
    plain = [tensor.detach().resolve_neg().cpu() for tensor in (actual, expected)]
    pair = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in plain)
    if actual.is_complex():
        pair = (torch.view_as_real(pair[0].resolve_conj()), torch.view_as_real(pair[1].resolve_conj()))
    left, right = (tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in pair)
    return torch.equal(left, right)


def smallest(dtype: torch.dtype) -> float:
    """The smallest number above zero, subnormal: 2**-24 in float16."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps
