"""Resampling, pooling and padding."""

from __future__ import annotations

import torch

from amp_checks.families.ops.inputs import fixed
from amp_checks.families.ops.rows import EIGHTHS, GRID, RUN, op, x

_LINE, _IMAGE, _VOLUME = x(2, 3, 8), x(2, 3, 6, 6), x(1, 2, 4, 4, 4)
SAMPLED = x(2, 3, 4, 8), x(2, 4, 4, 2, draw=GRID)
"""An image and where it is sampled."""

RESAMPLING = (
    op("_upsample_bicubic2d_aa", _IMAGE, [4, 4], False),
    op("_upsample_bilinear2d_aa", _IMAGE, [4, 4], False),
    op("_upsample_nearest_exact1d", _LINE, [5]),
    op("_upsample_nearest_exact2d", _IMAGE, [4, 4]),
    op("_upsample_nearest_exact3d", _VOLUME, [3, 3, 3]),
    op("upsample_bicubic2d", _IMAGE, [4, 4], False),
    op("upsample_bilinear2d", _IMAGE, [4, 4], False),
    op("upsample_linear1d", _LINE, [5], False),
    op("upsample_nearest1d", _LINE, [5]),
    op("upsample_nearest2d", _IMAGE, [4, 4]),
    op("upsample_nearest3d", _VOLUME, [3, 3, 3]),
    op("upsample_trilinear3d", _VOLUME, [3, 3, 3], False),
    op("grid_sampler_2d", *SAMPLED, 0, 0, False),
    op("_grid_sampler_2d_cpu_fallback", *SAMPLED, 0, 0, False, only=("cpu",), reference=torch.grid_sampler_2d),
    op("grid_sampler_3d", _VOLUME, x(1, 3, 3, 3, 3, draw=GRID), 0, 0, False),
)

POOLING = (
    op("adaptive_avg_pool3d", _VOLUME, [2, 2, 2]),
    op("adaptive_max_pool3d", _VOLUME, [2, 2, 2], outputs=(RUN, "int64")),
    op("avg_pool3d", _VOLUME, [2, 2, 2]),
    op("max_pool3d", _VOLUME, [2, 2, 2]),
    op(
        "fractional_max_pool2d",
        x(2, 3, 8, 8),
        [2, 2],
        [4, 4],
        x(2, 3, 2, draw=EIGHTHS, grad=False),
        outputs=(RUN, "int64"),
    ),
    op(
        "fractional_max_pool3d",
        *(x(1, 2, 6, 6, 6), [2, 2, 2], [3, 3, 3], x(1, 2, 3, draw=EIGHTHS, grad=False)),
        outputs=(RUN, "int64"),
    ),
    op("max_unpool2d", x(1, 1, 2, 2), fixed(1, 1, 2, 2, values=(0, 3, 9, 14)), [4, 4]),
    op(
        "max_unpool3d", *(x(1, 1, 1, 2, 2), fixed(1, 1, 1, 2, 2, values=(0, 3, 9, 14)), [2, 4, 4], [2, 2, 2], [0, 0, 0])
    ),
)

PADDING = (
    op("reflection_pad1d", _LINE, [1, 2]),
    op("reflection_pad2d", _IMAGE, [1, 2, 1, 2]),
    op("replication_pad1d", _LINE, [1, 2]),
    op("replication_pad2d", _IMAGE, [1, 2, 1, 2]),
    op("replication_pad3d", _VOLUME, [1, 1, 1, 1, 1, 1]),
)

ROWS = (*RESAMPLING, *POOLING, *PADDING)
