"""Functions of one element, norms, reductions and losses: what CUDA's autocast runs in float32."""

from __future__ import annotations

from typing import Any

from amp_checks.families.ops.inputs import fixed
from amp_checks.families.ops.rows import (
    COMPLEX,
    LOG_SOFTMAX,
    MEMORY_INSIDE,
    NAMES,
    NEAR_ONE,
    POSITIVE,
    PRODUCTS_INSIDE,
    RUN,
    SIGN,
    SIGNED,
    SPREAD,
    UNIT,
    OpCase,
    op,
    x,
)

_LARGE = 2.0**17
_CLASSES = fixed(5, values=(0, 3, 1, 2, 0))


def named(name: str, *args: Any, **fields: Any) -> OpCase:
    """A row of an overload that takes the names of dimensions (torch up to 2.11 has them)."""
    return op(name, x(4, 5, names=("A", "B")), *args, device_only=NAMES, **fields)


POINTWISE = (
    op("acos", x(4, 5, draw=SIGNED)),
    op("asin", x(4, 5, draw=SIGNED)),
    op("cosh", x(4, 5), wide=16.0),
    op("erfinv", x(4, 5, draw=SIGNED)),
    op("exp", x(4, 5), wide=16.0),
    op("expm1", x(4, 5)),
    op("log", x(4, 5, draw=POSITIVE)),
    op("log10", x(4, 5, draw=POSITIVE)),
    op("log1p", x(4, 5, draw=POSITIVE)),
    op("log2", x(4, 5, draw=POSITIVE)),
    op("polar", x(4, 5, draw=POSITIVE), x(4, 5), outputs=(COMPLEX,)),
    op("pow.Scalar", 1.5, x(4, 5), wide=32.0),
    op("pow.Tensor_Scalar", x(4, 5, draw=POSITIVE), 1.5),
    op("pow.Tensor_Tensor", x(4, 5, draw=NEAR_ONE), x(4, 5), wide=6.0),
    op("reciprocal", x(4, 5, draw=POSITIVE)),
    op("rsqrt", x(4, 5, draw=NEAR_ONE), noise="cancelling"),
    op("sinh", x(4, 5)),
    op("softplus", x(4, 5), wide=_LARGE),
    op("tan", x(4, 5, draw=SIGNED)),
    op("view_as_complex", x(4, 2), outputs=(COMPLEX,)),
    op("fake_quantize_per_tensor_affine", x(4, 5), 0.1, 0, -128, 127),
)

NORMS = (
    op(
        "batch_norm", x(4, 3, 5), x(3), x(3), x(3, grad=False), x(3, draw=POSITIVE, grad=False), False, 0.1, 1e-5, False
    ),
    op("group_norm", x(4, 6, 5), 2, x(6), x(6)),
    op("layer_norm", x(4, 6), [6], x(6), x(6)),
    op("native_layer_norm", x(4, 6), [6], x(6), x(6), 1e-5, outputs=(RUN, RUN, RUN)),
    op("rms_norm", x(4, 6), [6], x(6), 1e-5),
    op("renorm", x(4, 5), 2.0, 0, 1.0),
    op("cosine_similarity", x(4, 6), x(4, 6), noise="cancelling"),
    op("cdist", x(4, 3), x(5, 3)),
    op("dist", x(4, 5), x(4, 5)),
    op("pdist", x(4, 5)),
    op("frobenius_norm.dim", x(4, 5), [0, 1]),
    op("nuclear_norm", x(4, 5)),
    op("nuclear_norm.dim", x(4, 5), [0, 1]),
    op("norm.Scalar", x(4, 5), 2.0, enters="norm.ScalarOpt_dtype"),
    op("norm.ScalarOpt_dim", x(4, 5), 2.0, [1], False, enters="norm.ScalarOpt_dim_dtype"),
    named(
        "norm.names_ScalarOpt_dim",
        *(2.0, ["B"], False),
        call="torch._VF.norm",
        fails="torch does not support named tensors there yet, with autocast or without",
    ),
    op("linalg_vector_norm", x(4, 5)),
    op("linalg_matrix_norm", x(4, 5, draw=SPREAD), 1),  # the largest of its columns' sums must stay so when rounded
    op("linalg_matrix_norm.str_ord", x(4, 5), "fro"),
)

REDUCTIONS = (
    op("cumprod", x(4, 5, draw=NEAR_ONE), 1),
    named("cumprod.dimname", "B", call="torch.cumprod"),
    op("cumsum", x(4, 5), 1),
    named("cumsum.dimname", "B", call="torch.cumsum"),
    op("log_softmax.int", x(4, 5), 1, wide=_LARGE),
    named("log_softmax.Dimname", "B", call="torch.log_softmax"),
    op("logsumexp", x(4, 5), [1], wide=_LARGE, noise="cancelling"),
    op("nanquantile", x(4, 5), x(2, draw=UNIT, grad=False), 1),
    op("nanquantile.scalar", x(4, 5), 0.3, 1),
    op("prod", x(4, 5, draw=NEAR_ONE), noise="chain"),
    op("prod.dim_int", x(4, 5, draw=NEAR_ONE), 1),
    named("prod.dim_Dimname", "B", call="torch.prod"),
    op("quantile", x(4, 5), x(2, draw=UNIT, grad=False), 1),
    op("quantile.scalar", x(4, 5), 0.3, 1),
    op("softmax.int", x(4, 5), 1, wide=_LARGE),
    named("softmax.Dimname", "B", call="torch.softmax"),
    op("sum", x(4, 5, draw=POSITIVE)),  # one number: terms that cancel would leave nothing to measure against
    op("sum.dim_IntList", x(4, 5), [1]),
    named("sum.dim_DimnameList", ["B"], call="torch.sum"),
    op("trace", x(5, 5)),
)

LOSSES = (
    op("binary_cross_entropy", x(4, 5, draw=UNIT), x(4, 5, draw=UNIT, grad=False)),
    op("binary_cross_entropy_with_logits", x(4, 5), x(4, 5, draw=UNIT, grad=False)),
    op("cosine_embedding_loss", x(4, 5), x(4, 5), x(4, draw=SIGN, grad=False)),
    op("cross_entropy_loss", x(5, 4), _CLASSES, listed_only=PRODUCTS_INSIDE),
    op(
        "ctc_loss.IntList",
        x(6, 2, 5, draw=LOG_SOFTMAX),
        fixed(2, 2, values=(1, 2, 2, 1)),
        [6, 6],
        [2, 2],
        listed_only=MEMORY_INSIDE,
    ),
    op(
        "ctc_loss.Tensor",
        *(x(6, 2, 5, draw=LOG_SOFTMAX), fixed(2, 2, values=(1, 2, 2, 1))),
        *(fixed(2, values=(6, 6)), fixed(2, values=(2, 2))),
    ),
    op("hinge_embedding_loss", x(4, 5), x(4, 5, draw=SIGN, grad=False)),
    op("huber_loss", x(4, 5), x(4, 5)),
    op("kl_div", x(4, 5, draw=LOG_SOFTMAX), x(4, 5, draw=UNIT, grad=False)),
    op("l1_loss", x(4, 5), x(4, 5)),
    op("margin_ranking_loss", x(5), x(5), x(5, draw=SIGN, grad=False)),
    op("mse_loss", x(4, 5), x(4, 5)),
    op("multi_margin_loss", x(5, 4), _CLASSES),
    op("multilabel_margin_loss", x(2, 4), fixed(2, 4, values=(3, 0, -1, 1, 2, -1, 0, 1))),
    op(
        "multilabel_margin_loss_forward",
        *(x(2, 4), fixed(2, 4, values=(3, 0, -1, 1, 2, -1, 0, 1)), 1),
        outputs=(RUN, RUN),
    ),
    op("nll_loss", x(5, 4, draw=LOG_SOFTMAX), _CLASSES),
    op("nll_loss2d", x(1, 4, 2, 2, draw=LOG_SOFTMAX), fixed(1, 2, 2, values=(0, 3, 1, 2))),
    op("poisson_nll_loss", x(4, 5), x(4, 5, draw=POSITIVE, grad=False), True, False, 1e-8, 1),
    op("smooth_l1_loss", x(4, 5), x(4, 5)),
    op("soft_margin_loss", x(4, 5), x(4, 5, draw=SIGN, grad=False)),
    op("triplet_margin_loss", x(4, 5), x(4, 5), x(4, 5)),
)

ROWS = (*POINTWISE, *NORMS, *REDUCTIONS, *LOSSES)
