"""Matrix products, convolutions, recurrent cells, attention: what autocast runs in the low dtype."""

from __future__ import annotations

from typing import Any

import torch

from amp_checks.families.ops.inputs import T, fixed
from amp_checks.families.ops.rows import NAMES, POSITIVE, PRODUCTS_INSIDE, RUN, SCRATCH, WEIGHT, op, x
from amp_checks.families.ops.tables.spatial import SAMPLED


def _weights(rows: int) -> tuple[T, ...]:
    """Weights and biases of a cell of 8 inputs and 3 units. Large ones close its gates, and rounding is left."""
    return tuple(x(*shape, draw=WEIGHT) for shape in ((rows, 8), (rows, 3), (rows,), (rows,)))


_LSTM = (x(16, 8), [x(16, 3), x(16, 3)], *_weights(12))
_IMAGE, _FILTER, _BIAS = x(2, 3, 8, 8), x(5, 3, 3, 3), x(5)
_FLASH = (x(1, 2, 8, 16), x(1, 2, 8, 16), x(1, 2, 8, 16))
_MKLDNN = (x(5, 2, 8), x(16, 8), x(16, 4), x(16), x(16), x(1, 2, 4), x(1, 2, 4))


def _lstm_layer(x: Any, *given: Any) -> Any:
    """What `mkldnn_rnn_layer` computes for `_MKLDNN`, its workspace apart: oneDNN has no float64."""
    *weights, hidden, cell = given[:6]
    return torch.lstm(x, (hidden, cell), weights, True, 1, 0.0, False, False, False)


PRODUCTS = (
    op("_addmm_activation", x(6), x(4, 8), x(8, 6), no_gradient="torch has no derivative of it"),
    op("addbmm", x(4, 6), x(3, 4, 5), x(3, 5, 6)),
    op("addmm", x(4, 6), x(4, 8), x(8, 6)),
    op("addmv", x(4), x(4, 8), x(8)),
    op("addr", x(4, 6), x(4), x(6)),
    op("baddbmm", x(3, 4, 6), x(3, 4, 5), x(3, 5, 6)),
    op("bmm", x(3, 4, 5), x(3, 5, 6)),
    op("chain_matmul", [x(4, 8), x(8, 6), x(6, 3)], listed_only=PRODUCTS_INSIDE),
    op("einsum", "ij,jk->ik", [x(4, 8), x(8, 6)], listed_only=PRODUCTS_INSIDE),
    op("linalg_multi_dot", [x(4, 8), x(8, 6), x(6, 3)], listed_only=PRODUCTS_INSIDE),
    op("linalg_vecdot", x(4, 8, draw=POSITIVE), x(4, 8, draw=POSITIVE), listed_only=PRODUCTS_INSIDE),
    op("linear", x(4, 8), x(6, 8), x(6)),
    op("matmul", x(3, 4, 8), x(8, 6)),
    op("mm", x(8, 12), x(12, 6)),
    op("mv", x(4, 8), x(8)),
    op("prelu", x(4, 3, 5), x(3)),
)

CONVOLUTIONS = (
    op("_convolution", _IMAGE, _FILTER, _BIAS, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True, True),
    op("_convolution.deprecated", _IMAGE, _FILTER, _BIAS, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True),
    op("_mps_convolution", _IMAGE, _FILTER, _BIAS, [1, 1], [1, 1], [1, 1], 1, only=("mps",)),
    op("conv1d", x(2, 3, 8), x(5, 3, 3), x(5)),
    op("conv1d.padding", x(2, 3, 8), x(5, 3, 3), x(5), [1], "same", listed_only=PRODUCTS_INSIDE),
    op("conv2d", _IMAGE, _FILTER, _BIAS),
    op("conv2d.padding", _IMAGE, _FILTER, _BIAS, [1, 1], "same", listed_only=PRODUCTS_INSIDE),
    op("conv3d", x(1, 2, 5, 5, 5), x(3, 2, 3, 3, 3), x(3)),
    op("conv3d.padding", x(1, 2, 5, 5, 5), x(3, 2, 3, 3, 3), x(3), [1, 1, 1], "same", listed_only=PRODUCTS_INSIDE),
    op("conv_tbc", x(8, 2, 3), x(3, 3, 5), x(5)),
    op("conv_transpose1d", x(2, 3, 8), x(3, 5, 3), x(5)),
    op("conv_transpose2d.input", x(2, 3, 6, 6), x(3, 5, 3, 3), x(5)),
    op("conv_transpose3d.input", x(1, 2, 4, 4, 4), x(2, 3, 3, 3, 3), x(3)),
    op("convolution", _IMAGE, _FILTER, _BIAS, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    op("cudnn_convolution", _IMAGE, _FILTER, [1, 1], [1, 1], [1, 1], 1, False, False, True, only=("cuda",)),
    op(
        "cudnn_convolution_transpose",
        *(x(2, 3, 6, 6), x(3, 5, 3, 3), [0, 0], [0, 0], [1, 1], [1, 1], 1, False, False, True),
        only=("cuda",),
    ),
)

CELLS = (
    op("_thnn_fused_gru_cell", x(4, 9), x(4, 9), x(4, 3), x(9), x(9), outputs=(RUN, RUN), only=("cuda", "xpu")),
    op("_thnn_fused_lstm_cell", x(4, 12), x(4, 12), x(4, 3), x(12), x(12), outputs=(RUN,) * 3, only=("cuda", "xpu")),
    op("gru_cell", x(16, 8), x(16, 3), *_weights(9), listed_only=PRODUCTS_INSIDE, noise="cell"),
    op("lstm_cell", *_LSTM, outputs=(RUN, RUN), listed_only=PRODUCTS_INSIDE, noise="cell"),
    op("rnn_relu_cell", x(4, 8), x(4, 3), *_weights(3), listed_only=PRODUCTS_INSIDE, noise="cell"),
    op("rnn_tanh_cell", x(4, 8), x(4, 3), *_weights(3), listed_only=PRODUCTS_INSIDE, noise="cell"),
    op(
        "mkldnn_rnn_layer",
        *(*_MKLDNN, False, [], 2, 4, 1, True, False, False, False),
        outputs=(RUN, RUN, RUN, SCRATCH),
        no_gradient="its backward needs a workspace that only training=True makes",
        only=("cpu",),
        reference=_lstm_layer,
        noise="chain",
        fails="oneDNN has 16-bit LSTMs only for processors with 16-bit matrix instructions",
    ),
    op(
        "_cudnn_rnn",
        # Weights in any other dtype its rule has cuDNN lay out, which needs the device.
        *(x(5, 2, 8), [T(shape, dtype="float16") for shape in ((16, 8), (16, 4), (16,), (16,))], 4, None),
        *(x(1, 2, 4), x(1, 2, 4), 2, 4, 0, 1, False, 0.0, False, False, [], None),
        outputs=(RUN,) * 5,
        only=("cuda-float16",),
    ),
)

ATTENTION = (
    op("scaled_dot_product_attention", x(2, 2, 5, 8), x(2, 2, 6, 8), x(2, 2, 6, 8), noise="cancelling"),
    op(
        "_scaled_dot_product_flash_attention",
        *_FLASH,
        outputs=(RUN, "float32", "int32", "int32", "uint64", "uint64", RUN),
        only=("cuda",),
    ),
    op(
        "_native_multi_head_attention",
        *(x(2, 5, 8), x(2, 5, 8), x(2, 5, 8), 8, 2, x(24, 8), x(24), x(8, 8), x(8)),
        outputs=(RUN, RUN),
        no_gradient="an inference-only kernel",
        noise="chain",
    ),
)

PROMOTED = (
    op("addcdiv", x(4, 5), x(4, 5), x(4, 5, draw=POSITIVE)),
    op("addcmul", x(4, 5), x(4, 5), x(4, 5)),
    op("atan2", x(4, 5), x(4, 5)),
    op("bilinear", x(4, 3), x(4, 5), x(6, 3, 5), x(6), listed_only=PRODUCTS_INSIDE),
    op("cat", [x(2, 5), x(3, 5)], 0),
    op("cross", x(4, 3), x(4, 3), 1),
    # One number: terms that cancel would leave nothing to measure against.
    op("dot", x(8, draw=POSITIVE), x(8, draw=POSITIVE)),
    op("grid_sampler", *SAMPLED, 0, 0, False),
    op("index_copy", x(4, 5), 0, fixed(2, values=(0, 2)), x(2, 5)),
    op(
        "index_copy.dimname",
        *(x(4, 5, names=("A", "B")), "A", fixed(2, values=(0, 2)), x(2, 5, names=("A", "B"))),
        call="torch.index_copy",
        fails="torch does not support the name of a dimension there yet, with autocast or without",
        device_only=NAMES,
    ),
    op("index_put", x(4, 5), [fixed(2, values=(0, 2))], x(2, 5)),
    op("scatter_add", x(4, 5), 0, fixed(2, 5, values=(0, 1, 2, 3, 0, 3, 2, 1, 0, 1)), x(2, 5)),
    op("stack", [x(4, 5), x(4, 5)], 0),
    op("tensordot", x(4, 8), x(8, 6), [1], [0], listed_only=PRODUCTS_INSIDE),
    op("vdot", x(8, draw=POSITIVE), x(8, draw=POSITIVE)),
)

ROWS = (*PRODUCTS, *CONVOLUTIONS, *CELLS, *ATTENTION, *PROMOTED)
