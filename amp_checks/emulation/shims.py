"""Kernels that the CPU lacks and that composite ops ask for when their tensors say that they are on a device.

Each takes the op and its arguments, on CPU tensors, and is differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from amp_checks.emulation import cells

_aten = torch.ops.aten


def _softmax(op: Any, tensor: Tensor, dim: int, half_to_float: bool) -> Any:
    """The device's kernel casts on its way; the CPU's refuses to."""
    return op(tensor.float() if half_to_float else tensor, dim, False)


def _never(op: Any, *args: Any, **kwargs: Any) -> bool:
    """Probes for a vendor's kernel: there is none here."""
    del op, args, kwargs
    return False


def _cudnn_convolution(
    op: Any,
    tensor: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *switches: bool,
) -> Tensor:
    """cuDNN's entry point; its switches choose among kernels that are not here."""
    del op, switches
    return torch.convolution(tensor, weight, None, stride, padding, dilation, False, [0] * len(padding), groups)


def _cudnn_convolution_transpose(
    op: Any,
    tensor: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *switches: bool,
) -> Tensor:
    """As `_cudnn_convolution`."""
    del op, switches
    return torch.convolution(tensor, weight, None, stride, padding, dilation, True, output_padding, groups)


SHIMS: dict[Any, Callable[..., Any]] = {
    _aten._softmax.default: _softmax,
    _aten._log_softmax.default: _softmax,
    _aten._use_cudnn_ctc_loss.default: _never,
    _aten._use_cudnn_ctc_loss.Tensor: _never,
    _aten.cudnn_convolution.default: _cudnn_convolution,
    _aten.cudnn_convolution_transpose.default: _cudnn_convolution_transpose,
    _aten._thnn_fused_lstm_cell.default: cells.fused_lstm_cell,
    _aten._thnn_fused_gru_cell.default: cells.fused_gru_cell,
}
SHIMS.update(
    {getattr(_aten._use_miopen_ctc_loss, overload): _never for overload in _aten._use_miopen_ctc_loss.overloads()}
    if hasattr(_aten, "_use_miopen_ctc_loss")  # newer than torch 2.11
    else {}
)

DEVICE_ONLY = frozenset(
    {"cudnn_convolution", "cudnn_convolution_transpose", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"}
)
"""Functions that the CPU has no kernel for at all: their shims are needed outside autocast too."""
