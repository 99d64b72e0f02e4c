"""The table of ranges: one row for each op whose safe input magnitudes are measured. To add an op, add a row.

`of` makes a row of the ops table's row of that overload; `row` one of its own. What they state is in
`amp_checks.families.ranges.limits`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from amp_checks.families.ops.cases import OVERLOADS
from amp_checks.families.ranges import composed
from amp_checks.families.ranges.composed import HEADS, LONG, QKV, QKV_BATCHED
from amp_checks.families.ranges.inputs import Input, RangeCase, of_table
from amp_checks.families.ranges.limits import AT_ZERO, limits

GATE = frozenset(
    [
        "mm",
        "mm long",
        "linear",
        "conv2d",
        "scaled_dot_product_attention",
        "addcmul",
        "cat",
        "exp",
        "exp2",
        "log",
        "square",
        "reciprocal",
        "rsqrt",
        "sqrt",
        "tanh",
        "gelu",
        "softplus",
        "div",
        "layer_norm",
        "layer_norm eps 1e-12",
        "batch_norm training eps 1e-12",
        "rms_norm",
        "normalize",
        "cosine_similarity",
        "var",
        "norm long",
        "layer norm by hand eps 1e-12",
        "sum long",
        "mean long",
        "cumsum long",
        "prod of 8",
        "softmax.int",
        "softmax long",
        "softmax without shift",
        "mse_loss",
        "mse by hand",
        "cross_entropy_loss",
        "attention by hand, row masked: fill -inf",
        "attention by hand, row masked: add min",
        "scaled_dot_product_attention, row masked: bool",
        "MultiheadAttention with weights, row masked",
    ]
)
"""Rows that every run measures; a full run does all."""


def of(name: str, scaled: int | tuple[int, ...] = 0, **fields: Any) -> RangeCase:
    """A row for an overload of the ops table, with its inputs; ``scaled``: the floating tensors that vary."""
    places = (scaled,) if isinstance(scaled, int) else scaled
    patterns = fields.pop("patterns", None)
    return _stating(name, **{**of_table(OVERLOADS[name], scaled=places, patterns=patterns), **fields})


def row(name: str, op: Callable[..., Any], *inputs: Input, **fields: Any) -> RangeCase:
    """A row of its own; one vector of both signs where no input is given."""
    return _stating(name, op=op, inputs=inputs or (Input(shape=(16,)),), **fields)


def _stating(name: str, **fields: Any) -> RangeCase:
    return RangeCase(
        name=name, limits=limits().get(name, {}), at_zero=AT_ZERO.get(name, {}), full=name not in GATE, **fields
    )


_POSITIVE = Input(shape=(16,), pattern="positive")
_EQUAL = Input(shape=(LONG,), pattern="equal")
_SPREAD = Input(shape=(LONG,))
_ROWS = Input(shape=(4, 16))
_FIXED = Input(shape=(4, 16), scaled=False, grad=False)
_IMAGE = Input(shape=(2, 3, 4, 4))

PRODUCTS = (
    *(of(name, 1) for name in ("_addmm_activation", "addbmm", "addmm", "addmv", "addr", "baddbmm")),
    *(of(name) for name in ("bmm", "chain_matmul", "einsum", "linalg_multi_dot", "linalg_vecdot", "linear", "matmul")),
    *(of(name) for name in ("mm", "mv", "prelu", "dot", "vdot", "tensordot", "bilinear", "cross")),
    *(of(name) for name in ("_convolution", "_convolution.deprecated", "convolution", "conv1d", "conv1d.padding")),
    *(of(name) for name in ("conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc", "conv_transpose1d")),
    *(of(name) for name in ("conv_transpose2d.input", "conv_transpose3d.input", "gru_cell", "lstm_cell")),
    *(of(name) for name in ("rnn_relu_cell", "rnn_tanh_cell", "scaled_dot_product_attention")),
    of("_native_multi_head_attention"),
    row("mm both", torch.mm, Input(shape=(8, 12)), Input(shape=(12, 6)), overload="mm"),
    row(
        "mm long",
        torch.mm,
        Input(shape=(2, LONG), pattern="equal"),
        Input(shape=(LONG, 2), pattern="equal", scaled=False),
        overload="mm",
    ),
)

POINTWISE = (
    *(of(name) for name in ("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log10", "log1p", "log2")),
    of("log", patterns={0: "equal"}),
    *(
        of(name)
        for name in ("pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "sinh", "softplus", "tan", "atan2")
    ),
    *(of(name, patterns={0: "equal"}) for name in ("reciprocal", "rsqrt")),
    of("addcdiv", 2),
    of("addcmul", (1, 2)),
    row("square", torch.square),
    row("sqrt", torch.sqrt, Input(shape=(16,), pattern="equal")),
    row("sigmoid", torch.sigmoid),
    row("tanh", torch.tanh),
    row("gelu", functional.gelu),
    row("gelu tanh", functools.partial(functional.gelu, approximate="tanh")),
    row("silu", functional.silu),
    row("mish", functional.mish),
    row("elu", functional.elu),
    row("relu", functional.relu),
    row("leaky_relu", functional.leaky_relu),
    row("hardswish", functional.hardswish),
    row("logsigmoid", functional.logsigmoid),
    row("exp2", torch.exp2),
    row("sin", torch.sin),
    row("erf", torch.erf),
    row("mul", torch.mul, _ROWS, _ROWS),
    row("div", torch.div, _FIXED, Input(shape=(4, 16), pattern="positive")),
    row("over x plus 1e-8", lambda x: 1 / (x + 1e-8), _POSITIVE),
    row("log of x plus 1e-8", lambda x: torch.log(x + 1e-8), _POSITIVE),
)

NORMS = (
    *(of(name) for name in ("batch_norm", "group_norm", "layer_norm", "native_layer_norm", "rms_norm", "renorm")),
    *(of(name) for name in ("dist", "frobenius_norm.dim", "norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm")),
    *(of(name) for name in ("linalg_matrix_norm", "linalg_matrix_norm.str_ord")),
    of("cosine_similarity", (0, 1)),
    row("norm long", torch.linalg.vector_norm, _SPREAD, overload="linalg_vector_norm"),
    row(
        "layer_norm eps 1e-12",
        lambda x: functional.layer_norm(x, x.shape[-1:], eps=1e-12),
        _ROWS,
        overload="layer_norm",
    ),
    row("rms_norm eps 1e-12", lambda x: functional.rms_norm(x, x.shape[-1:], eps=1e-12), _ROWS, overload="rms_norm"),
    row(
        "group_norm eps 1e-12",
        lambda x: functional.group_norm(x, 2, eps=1e-12),
        Input(shape=(2, 4, 6)),
        overload="group_norm",
    ),
    row(
        "batch_norm training",
        functools.partial(composed.batch_norm_training, eps=1e-5),
        Input(shape=(8, 3)),
        overload="batch_norm",
    ),
    row(
        "batch_norm training eps 1e-12",
        functools.partial(composed.batch_norm_training, eps=1e-12),
        Input(shape=(8, 3)),
        overload="batch_norm",
    ),
    row("instance_norm", composed.instance_norm, _IMAGE, overload="batch_norm"),
    row("local_response_norm", lambda x: functional.local_response_norm(x, 3), _IMAGE),
    row("normalize", lambda x: functional.normalize(x, dim=-1), _ROWS),
    row("var", lambda x: x.var(-1), _ROWS),
    row("std", lambda x: x.std(-1), _ROWS),
    row("var long", torch.var, _SPREAD),
    row("layer norm by hand eps 1e-5", functools.partial(composed.layer_norm_by_hand, eps=1e-5), _ROWS),
    row("layer norm by hand eps 1e-12", functools.partial(composed.layer_norm_by_hand, eps=1e-12), _ROWS),
    row("rms norm by hand eps 1e-6", functools.partial(composed.rms_norm_by_hand, eps=1e-6), _ROWS),
    row("rms norm by hand eps 1e-12", functools.partial(composed.rms_norm_by_hand, eps=1e-12), _ROWS),
    row("over norm plus 1e-8", functools.partial(composed.over_norm, eps=1e-8), _ROWS),
    row("over sum plus 1e-8", functools.partial(composed.over_sum, eps=1e-8), Input(shape=(4, 16), pattern="positive")),
)

REDUCTIONS = (
    *(of(name) for name in ("cumprod", "cumsum", "log_softmax.int", "logsumexp", "prod", "prod.dim_int")),
    *(of(name) for name in ("softmax.int", "sum", "sum.dim_IntList")),
    row("sum long", torch.sum, _EQUAL, overload="sum"),
    row("mean long", torch.mean, _EQUAL),
    row("cumsum long", lambda x: torch.cumsum(x, 0), _EQUAL, overload="cumsum"),
    row("prod of 8", torch.prod, Input(shape=(8,), pattern="equal"), overload="prod"),
    row("cumprod of 8", lambda x: torch.cumprod(x, 0), Input(shape=(8,), pattern="equal"), overload="cumprod"),
    row("softmax long", lambda x: torch.softmax(x, 0), _SPREAD, overload="softmax.int"),
    row("log_softmax long", lambda x: torch.log_softmax(x, 0), _SPREAD, overload="log_softmax.int"),
    row("logsumexp long", lambda x: torch.logsumexp(x, 0), _SPREAD, overload="logsumexp"),
    row("softmax without shift", composed.softmax_without_shift),
    row("log of softmax", lambda x: torch.softmax(x, -1).log()),
)

LOSSES = (
    *(of(name) for name in ("binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy_loss")),
    *(
        of(name)
        for name in ("hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss")
    ),
    *(
        of(name)
        for name in ("nll_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss")
    ),
    row("mse by hand", composed.mse_by_hand, _ROWS, _FIXED),
    row(
        "dice by hand",
        composed.dice,
        Input(shape=(64,), pattern="positive"),
        Input(shape=(64,), pattern="equal", scaled=False, grad=False),
    ),
)

# Where a coordinate of the grid is rounded across a pixel, another pixel is sampled: here it lies on an edge exactly.
SHAPES = (
    *(of(name) for name in ("cat", "stack", "index_copy", "index_put", "scatter_add")),
    *(of(name, patterns={1: "alternating"}) for name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")),
    *(of(name) for name in ("adaptive_avg_pool3d", "avg_pool3d")),
    *(
        of(name)
        for name in OVERLOADS
        if name.startswith(("_upsample_nearest", "upsample_", "reflection_", "replication_"))
    ),
    of("max_pool3d"),
    of("adaptive_max_pool3d"),
    of("fractional_max_pool2d"),
    of("fractional_max_pool3d"),
    of("max_unpool2d"),
    of("max_unpool3d"),
)

ATTENTION = (
    row("attention by hand", composed.attention, *QKV),
    *(
        row(f"attention by hand, row masked: {mask}", functools.partial(composed.attention_masked, mask=mask), *QKV)
        for mask in ("fill -inf", "fill min", "add -inf", "add min", "add min twice")
    ),
    *(
        row(
            f"scaled_dot_product_attention, row masked: {mask}",
            functools.partial(composed.sdpa_masked, mask=mask),
            *QKV_BATCHED,
            exact=functools.partial(composed.sdpa_exact, mask=mask),
            overload="scaled_dot_product_attention",
        )
        for mask in ("bool", "-inf", "min")
    ),
    row("MultiheadAttention", functools.partial(composed.multi_head, need_weights=False, masked=False), *HEADS),
    row("MultiheadAttention, row masked", functools.partial(composed.multi_head, need_weights=False), *HEADS),
    row(
        "MultiheadAttention with weights, row masked", functools.partial(composed.multi_head, need_weights=True), *HEADS
    ),
)

CASES: tuple[RangeCase, ...] = (*PRODUCTS, *POINTWISE, *NORMS, *REDUCTIONS, *LOSSES, *SHAPES, *ATTENTION)
