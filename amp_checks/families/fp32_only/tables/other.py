"""Distances, statistics, losses and layers that do not run in 16 bits, and ops forced to FP32 by choice."""

from __future__ import annotations

import torch
from torch.nn import functional

from amp_checks.families.fp32_only.rows import REGULAR, RIGHT, VECTOR, Fp32OnlyCase, Input
from amp_checks.torch_api.numerics import seeded

_IMAGE = (Input(shape=(1, 2, 8, 8)),)
_VOLUME = (Input(shape=(1, 2, 4, 4, 4)),)
_POINTS = (Input(shape=(6, 8)), Input(shape=(5, 8)))


def _ctc(x: torch.Tensor) -> torch.Tensor:
    """Ten steps, batch of two, eight symbols; the input stands for log-probabilities, which need not add up."""
    lengths = torch.tensor([10, 9])
    targets = torch.tensor([[1, 2, 3], [4, 5, 0]], device=x.device)
    loss: torch.Tensor = functional.ctc_loss(x, targets, lengths, torch.tensor([3, 2]))
    return loss


def _rrelu(x: torch.Tensor) -> torch.Tensor:
    with seeded("slopes"):
        return functional.rrelu(x, training=True)


def _multilabel(x: torch.Tensor) -> torch.Tensor:
    targets = torch.tensor([[1, 3, -1, 0, 0, 0, 0, 0]], device=x.device).expand(x.shape[0], -1)
    return functional.multilabel_margin_loss(x, targets)


ROWS: tuple[Fp32OnlyCase, ...] = (
    Fp32OnlyCase(declared="cdist", op=torch.cdist, inputs=_POINTS),
    Fp32OnlyCase(declared="nn.functional.pdist", op=functional.pdist, inputs=VECTOR),
    Fp32OnlyCase(declared="quantile", op=lambda x: torch.quantile(x, 0.3), inputs=VECTOR),
    Fp32OnlyCase(declared="nanquantile", op=lambda x: torch.nanquantile(x, 0.3), inputs=VECTOR),
    Fp32OnlyCase(
        declared="histc", op=lambda x: torch.histc(x, bins=4, min=-4, max=4), inputs=VECTOR, differentiable=False
    ),
    Fp32OnlyCase(declared="histogram", op=lambda x: torch.histogram(x, bins=4), inputs=VECTOR, differentiable=False),
    Fp32OnlyCase(
        declared="histogramdd",
        op=lambda x: torch.histogramdd(x[:, :2].contiguous(), bins=[2, 2])[0],
        inputs=VECTOR,
        differentiable=False,
    ),
    Fp32OnlyCase(declared="nn.functional.ctc_loss", op=_ctc, inputs=(Input(shape=(10, 2, 8)),)),
    Fp32OnlyCase(
        declared="nn.functional.multi_margin_loss",
        op=lambda x: functional.multi_margin_loss(x, torch.arange(8, device=x.device)),
        inputs=VECTOR,
    ),
    Fp32OnlyCase(declared="nn.functional.multilabel_margin_loss", op=_multilabel, inputs=VECTOR),
    Fp32OnlyCase(declared="nn.functional.rrelu", op=_rrelu, inputs=VECTOR),
    Fp32OnlyCase(declared="nn.functional.avg_pool3d", op=lambda x: functional.avg_pool3d(x, 2), inputs=_VOLUME),
    Fp32OnlyCase(
        declared="_upsample_bilinear2d_aa",
        op=lambda x: functional.interpolate(x, size=(5, 5), mode="bilinear", antialias=True),
        inputs=_IMAGE,
    ),
    # These run in 16 bits, and autocast lowers them: forced to FP32 by choice, they need a disabled region above all.
    Fp32OnlyCase(declared="mm", op=torch.mm, inputs=REGULAR + RIGHT, supported=True),
    Fp32OnlyCase(declared="bmm", op=torch.bmm, inputs=(Input(shape=(2, 4, 8)), Input(shape=(2, 8, 4))), supported=True),
    Fp32OnlyCase(
        declared="nn.functional.linear", op=functional.linear, inputs=(*VECTOR, Input(shape=(3, 8))), supported=True
    ),
    Fp32OnlyCase(
        declared="nn.functional.conv2d",
        op=functional.conv2d,
        inputs=(*_IMAGE, Input(shape=(3, 2, 3, 3))),
        supported=True,
    ),
)
