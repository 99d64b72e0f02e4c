"""Ops that models use most and that no device type's autocast lists: they run in the dtypes of their inputs."""

from __future__ import annotations

from amp_checks.families.ops.inputs import fixed
from amp_checks.families.ops.rows import POSITIVE, SIGNED, op, x

_PLANE, _IMAGE = x(4, 5), x(2, 3, 6, 6)
_MASK = fixed(4, 5, values=(1, 0, 1, 1, 0) * 4, dtype="bool")

ARITHMETIC = (
    op("add.Tensor", _PLANE, _PLANE),
    op("sub.Tensor", _PLANE, _PLANE),
    op("mul.Tensor", _PLANE, _PLANE),
    op("div.Tensor", _PLANE, x(4, 5, draw=POSITIVE)),
    op("mul.Scalar", _PLANE, 0.7),
    op("lerp.Scalar", _PLANE, _PLANE, 0.3),
    op("maximum", _PLANE, _PLANE),
    op("where.self", _MASK, _PLANE, _PLANE),
    op("masked_fill.Scalar", _PLANE, _MASK, 0.5),
    op("abs", _PLANE),
    op("clamp", _PLANE, -1.3, 1.3),
    op("sqrt", x(4, 5, draw=POSITIVE)),
    op("sin", _PLANE),
    op("cos", _PLANE),
)

ACTIVATIONS = (
    op("elu", _PLANE),
    op("gelu", _PLANE),
    op("glu", x(4, 6), 1),
    op("hardswish", _PLANE),
    op("leaky_relu", _PLANE, 0.1),
    op("mish", _PLANE),
    op("relu", _PLANE),
    op("sigmoid", _PLANE),
    op("silu", _PLANE),
    op("tanh", _PLANE),
)

REDUCTIONS = (
    op("amax", _PLANE, [1]),
    op("mean", x(4, 5, draw=POSITIVE)),
    op("mean.dim", x(4, 5, draw=POSITIVE), [1]),
    op("var.correction", _PLANE, [1], kwargs={"correction": 1}),
    op("std.correction", _PLANE, [1], kwargs={"correction": 1}),
)

SPATIAL = (
    op("adaptive_avg_pool2d", _IMAGE, [2, 2]),
    op("avg_pool2d", _IMAGE, [2, 2]),
    op("max_pool2d", _IMAGE, [2, 2]),
    op("constant_pad_nd", _IMAGE, [1, 1, 1, 1], 0.5),
)

INDEXING = (
    op("embedding", x(6, 4), fixed(2, 4, values=(0, 2, 5, 3, 1, 3, 4, 2))),
    op("gather", _PLANE, 1, fixed(4, 2, values=(0, 4, 1, 1, 2, 0, 3, 4))),
    op("index_select", _PLANE, 0, fixed(3, values=(0, 2, 2))),
    op("repeat_interleave.self_int", x(4, 5, draw=SIGNED), 2, 1),
)

ROWS = (*ARITHMETIC, *ACTIVATIONS, *REDUCTIONS, *SPATIAL, *INDEXING)
