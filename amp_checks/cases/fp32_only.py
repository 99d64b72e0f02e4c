"""Ops that do not run in 16 bits: what AMP users must run in FP32, outside autocast. Add an op as one row.

``unsupported_on`` says where an op lacks both float16 and bfloat16. Its source: the CPU's were run, the CUDA
ones are declared by torch's own database of ops (``fixtures/low_precision_support.json``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from amp_checks.core import Backend

BOTH = frozenset({"cpu", "cuda"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A seeded float32 input.

    Attributes:
        shape: its shape; square in its last two dimensions for every kind of matrix.
        kind: ``normal`` (standard normal), ``unit`` (0.1 to 0.9), ``positive`` (0.5 to 2.5), or a matrix:
            ``regular`` (far from singular), ``spd`` (symmetric positive definite), ``lower`` (triangular).
    """

    shape: tuple[int, ...]
    kind: str = "normal"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fp32OnlyCase:
    """An op without 16-bit support.

    Attributes:
        op: called with the inputs; gives a tensor or a tuple of tensors.
        inputs: what it is called with.
        declared: its name in torch's database of ops.
        differentiable: whether gradients flow through it.
        unsupported_on: device types where it lacks float16 and bfloat16.
    """

    op: Callable[..., Any]
    inputs: tuple[Input, ...]
    declared: str
    differentiable: bool = True
    unsupported_on: frozenset[str] = BOTH
    full: bool = False
    family: str = "fp32-only"

    @property
    def id(self) -> str:
        return self.declared

    def runs_on(self, backend: Backend) -> bool:
        return backend.device_type in self.unsupported_on


_VECTOR = (Input(shape=(8, 8)),)
_UNIT = (Input(shape=(8, 8), kind="unit"),)
_POSITIVE = (Input(shape=(8, 8), kind="positive"),)
_REGULAR = (Input(shape=(8, 8), kind="regular"),)
_SPD = (Input(shape=(8, 8), kind="spd"),)
_LOWER = (Input(shape=(8, 8), kind="lower"),)
_RIGHT = (Input(shape=(8, 3)),)


def _ctc(x: torch.Tensor) -> torch.Tensor:
    """Ten steps, batch of two, eight symbols."""
    lengths = torch.tensor([10, 9])
    targets = torch.tensor([[1, 2, 3], [4, 5, 0]], device=x.device)
    loss: torch.Tensor = functional.ctc_loss(x.log_softmax(-1), targets, lengths, torch.tensor([3, 2]))
    return loss


CASES: tuple[Fp32OnlyCase, ...] = (
    Fp32OnlyCase(declared="linalg.inv", op=torch.linalg.inv, inputs=_REGULAR),
    Fp32OnlyCase(declared="linalg.solve", op=torch.linalg.solve, inputs=_REGULAR + _RIGHT),
    Fp32OnlyCase(declared="linalg.cholesky", op=torch.linalg.cholesky, inputs=_SPD),
    Fp32OnlyCase(declared="linalg.qr", op=torch.linalg.qr, inputs=_REGULAR),
    Fp32OnlyCase(declared="linalg.svdvals", op=torch.linalg.svdvals, inputs=_REGULAR),
    Fp32OnlyCase(declared="linalg.eigvalsh", op=torch.linalg.eigvalsh, inputs=_SPD),
    Fp32OnlyCase(declared="linalg.det", op=torch.linalg.det, inputs=_REGULAR),
    Fp32OnlyCase(declared="linalg.slogdet", op=torch.linalg.slogdet, inputs=_REGULAR),
    # gelsy, the CPU's default driver, gives other bits from call to call; gels does not, and is CUDA's.
    Fp32OnlyCase(
        declared="linalg.lstsq",
        op=lambda a, b: torch.linalg.lstsq(a, b, driver="gels").solution,
        inputs=_REGULAR + _RIGHT,
    ),
    Fp32OnlyCase(declared="linalg.pinv", op=torch.linalg.pinv, inputs=_REGULAR),
    Fp32OnlyCase(
        declared="linalg.solve_triangular",
        op=lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        inputs=_LOWER + _RIGHT,
    ),
    Fp32OnlyCase(declared="logdet", op=torch.logdet, inputs=_SPD),
    Fp32OnlyCase(declared="cholesky_solve", op=torch.cholesky_solve, inputs=_RIGHT + _LOWER),
    Fp32OnlyCase(declared="cholesky_inverse", op=torch.cholesky_inverse, inputs=_LOWER),
    Fp32OnlyCase(declared="cdist", op=torch.cdist, inputs=(Input(shape=(6, 8)), Input(shape=(5, 8)))),
    Fp32OnlyCase(declared="nn.functional.pdist", op=functional.pdist, inputs=_VECTOR),
    Fp32OnlyCase(declared="quantile", op=lambda x: torch.quantile(x, 0.3), inputs=_VECTOR),
    Fp32OnlyCase(
        declared="stft",
        op=lambda x: torch.stft(x, 16, window=torch.ones(16, dtype=x.dtype, device=x.device), return_complex=True),
        inputs=(Input(shape=(2, 64)),),
    ),
    Fp32OnlyCase(declared="nn.functional.ctc_loss", op=_ctc, inputs=(Input(shape=(10, 2, 8)),)),
    Fp32OnlyCase(declared="special.erfcx", op=torch.special.erfcx, inputs=_VECTOR),
    Fp32OnlyCase(declared="special.ndtri", op=torch.special.ndtri, inputs=_UNIT),
    Fp32OnlyCase(declared="special.log_ndtr", op=torch.special.log_ndtr, inputs=_VECTOR),
    Fp32OnlyCase(declared="special.bessel_j0", op=torch.special.bessel_j0, inputs=_POSITIVE, differentiable=False),
    Fp32OnlyCase(
        declared="nn.functional.multi_margin_loss",
        op=lambda x: functional.multi_margin_loss(x, torch.arange(8, device=x.device)),
        inputs=_VECTOR,
        unsupported_on=frozenset({"cpu"}),
    ),
    Fp32OnlyCase(declared="fft.rfft", op=torch.fft.rfft, inputs=_VECTOR, unsupported_on=frozenset({"cpu"})),
)
