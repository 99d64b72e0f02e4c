"""The listed ops as users write them: functions, methods, operators and modules, each with the overload that
it must reach.
"""

from __future__ import annotations

from typing import Any

from amp_checks.families.ops.inputs import fixed
from amp_checks.families.ops.rows import LOG_SOFTMAX, POSITIVE, SIGN, UNIT, OpCase, x
from amp_checks.families.ops.tables.spatial import SAMPLED
from amp_checks.families.ops.variants import SpellingCase

_F = "torch.nn.functional"
_CLASSES = fixed(5, values=(0, 3, 1, 2, 0))

_WRITTEN: tuple[tuple[str, str, tuple[Any, ...] | None, dict[str, Any]], ...] = (
    # path, overload, arguments (None: those of the overload's own row), keywords
    ("torch.mm", "mm", None, {}),
    ("torch.Tensor.mm", "mm", None, {}),
    ("torch.bmm", "bmm", None, {}),
    ("torch.addmm", "addmm", None, {}),
    ("torch.matmul", "matmul", None, {}),
    ("torch.Tensor.matmul", "matmul", None, {}),
    ("operator.matmul", "matmul", None, {}),
    ("torch.einsum", "einsum", ("ij,jk->ik", x(4, 8), x(8, 6)), {}),
    ("torch.tensordot", "tensordot", (x(4, 8), x(8, 6)), {"dims": 1}),
    ("torch.linalg.multi_dot", "linalg_multi_dot", None, {}),
    ("torch.linalg.vecdot", "linalg_vecdot", None, {}),
    ("torch.nn.functional.linear", "linear", None, {}),
    ("torch.nn.functional.bilinear", "bilinear", None, {}),
    ("torch.nn.functional.conv1d", "conv1d", None, {}),
    ("torch.nn.functional.conv2d", "conv2d", None, {}),
    ("torch.nn.functional.conv3d", "conv3d", None, {}),
    ("torch.nn.functional.conv_transpose2d", "conv_transpose2d.input", None, {}),
    ("torch.nn.functional.prelu", "prelu", None, {}),
    (f"{_F}.scaled_dot_product_attention", "scaled_dot_product_attention", None, {}),
    ("torch.lstm_cell", "lstm_cell", None, {}),
    ("torch.gru_cell", "gru_cell", None, {}),
    ("torch.exp", "exp", None, {}),
    ("torch.Tensor.exp", "exp", None, {}),
    ("torch.log", "log", None, {}),
    ("torch.pow", "pow.Tensor_Scalar", None, {}),
    ("operator.pow", "pow.Tensor_Scalar", None, {}),
    ("torch.Tensor.__rpow__", "pow.Scalar", (x(4, 5), 1.5), {}),
    ("torch.rsqrt", "rsqrt", None, {}),
    ("torch.nn.functional.softplus", "softplus", None, {}),
    ("torch.softmax", "softmax.int", None, {}),
    ("torch.nn.functional.softmax", "softmax.int", None, {}),
    ("torch.nn.functional.log_softmax", "log_softmax.int", None, {}),
    ("torch.sum", "sum", None, {}),
    ("torch.Tensor.sum", "sum.dim_IntList", None, {}),
    ("torch.prod", "prod.dim_int", None, {}),
    ("torch.cumsum", "cumsum", None, {}),
    ("torch.logsumexp", "logsumexp", None, {}),
    ("torch.linalg.vector_norm", "linalg_vector_norm", None, {}),
    ("torch.linalg.matrix_norm", "linalg_matrix_norm", (x(4, 5), 1), {}),
    ("torch.nn.functional.layer_norm", "layer_norm", None, {}),
    ("torch.nn.functional.group_norm", "group_norm", (x(4, 6, 5), 2, x(6), x(6)), {}),
    ("torch.nn.functional.rms_norm", "rms_norm", None, {}),
    ("torch.nn.functional.cosine_similarity", "cosine_similarity", None, {}),
    ("torch.cdist", "cdist", None, {}),
    ("torch.dist", "dist", None, {}),
    ("torch.nn.functional.mse_loss", "mse_loss", (x(4, 5), x(4, 5)), {}),
    ("torch.nn.functional.l1_loss", "l1_loss", (x(4, 5), x(4, 5)), {}),
    ("torch.nn.functional.smooth_l1_loss", "smooth_l1_loss", (x(4, 5), x(4, 5)), {}),
    ("torch.nn.functional.huber_loss", "huber_loss", (x(4, 5), x(4, 5)), {}),
    ("torch.nn.functional.kl_div", "kl_div", (x(4, 5, draw=LOG_SOFTMAX), x(4, 5, draw=UNIT)), {"reduction": "sum"}),
    ("torch.nn.functional.nll_loss", "nll_loss", (x(5, 4, draw=LOG_SOFTMAX), _CLASSES), {}),
    ("torch.nn.functional.cross_entropy", "cross_entropy_loss", (x(5, 4), _CLASSES), {}),
    ("torch.nn.functional.binary_cross_entropy", "binary_cross_entropy", (x(4, 5, draw=UNIT), x(4, 5, draw=UNIT)), {}),
    (f"{_F}.binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits", (x(4, 5), x(4, 5, draw=UNIT)), {}),
    (f"{_F}.cosine_embedding_loss", "cosine_embedding_loss", (x(4, 5), x(4, 5), x(4, draw=SIGN)), {}),
    (f"{_F}.triplet_margin_loss", "triplet_margin_loss", (x(4, 5), x(4, 5), x(4, 5)), {}),
    (f"{_F}.poisson_nll_loss", "poisson_nll_loss", (x(4, 5), x(4, 5, draw=POSITIVE)), {}),
    ("torch.cat", "cat", None, {}),
    ("torch.stack", "stack", None, {}),
    ("torch.addcmul", "addcmul", None, {}),
    ("torch.atan2", "atan2", None, {}),
    ("torch.dot", "dot", None, {}),
    ("torch.nn.functional.grid_sample", "grid_sampler", SAMPLED, {"align_corners": False}),
    ("torch.nn.functional.avg_pool3d", "avg_pool3d", (x(1, 2, 4, 4, 4), 2), {}),
    ("torch.nn.functional.max_pool3d", "max_pool3d", (x(1, 2, 4, 4, 4), 2), {}),
    ("torch.trace", "trace", None, {}),
    ("torch.quantile", "quantile.scalar", None, {}),
    ("torch.fft.rfft", "fft_rfft", None, {}),
    ("torch.fft.fft2", "fft_fft2", None, {}),
    ("torch.linalg.inv", "linalg_inv", None, {}),
    ("torch.linalg.solve", "linalg_solve", None, {}),
    ("torch.linalg.cholesky", "linalg_cholesky", None, {}),
    ("torch.linalg.svdvals", "linalg_svdvals", None, {}),
)


def spellings(overloads: dict[str, OpCase]) -> tuple[SpellingCase, ...]:
    """A case for each spelling of an overload in the table."""
    return tuple(
        SpellingCase(op=overloads[name], path=path, args=args, kwargs=kwargs) for path, name, args, kwargs in _WRITTEN
    )
