"""Kernels that the CPU lacks and that composite ops ask for when they are told that their tensors are on a device.

Each takes the op and its arguments, on CPU tensors, and is differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _softmax(op: Any, tensor: Tensor, dim: int, half_to_float: bool) -> Any:
    """The device's kernel casts on its way; the CPU's refuses to."""
    return op(tensor.float() if half_to_float else tensor, dim, False)


def _never(op: Any, *args: Any, **kwargs: Any) -> bool:
    """Probes for a vendor's kernel: there is none here."""
    del op, args, kwargs
    return False


def _fused_lstm_cell(
    op: Any,
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computed in float32, each output rounded once. Shapes: gates ``(N, 4H)``, cell ``(N, H)``."""
    del op
    gates = input_gates.float() + hidden_gates.float()
    if input_bias is not None and hidden_bias is not None:
        gates = gates + (input_bias.float() + hidden_bias.float())
    entry, forget, candidate, exit_ = gates.chunk(4, 1)
    new_cell = forget.sigmoid() * cell.float() + entry.sigmoid() * candidate.tanh()
    hidden = exit_.sigmoid() * new_cell.tanh()
    dtype = input_gates.dtype
    return hidden.to(dtype), new_cell.to(dtype), gates.to(dtype)


def _fused_gru_cell(
    op: Any,
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computed in float32, each output rounded once. Shapes: gates ``(N, 3H)``, hidden ``(N, H)``."""
    del op
    from_input, from_hidden = input_gates.float(), hidden_gates.float()
    if input_bias is not None and hidden_bias is not None:
        from_input, from_hidden = from_input + input_bias.float(), from_hidden + hidden_bias.float()
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    dtype = input_gates.dtype
    return ((hidden.float() - new) * update + new).to(dtype), input_gates


SHIMS: dict[Any, Callable[..., Any]] = {
    _aten._softmax.default: _softmax,
    _aten._log_softmax.default: _softmax,
    _aten._use_cudnn_ctc_loss.default: _never,
    _aten._use_cudnn_ctc_loss.Tensor: _never,
    _aten._thnn_fused_lstm_cell.default: _fused_lstm_cell,
    _aten._thnn_fused_gru_cell.default: _fused_gru_cell,
}
SHIMS.update(
    {
        getattr(_aten._use_miopen_ctc_loss, overload): _never
        for overload in _aten._use_miopen_ctc_loss.overloads()
    }
    if hasattr(_aten, "_use_miopen_ctc_loss")  # newer than torch 2.11
    else {}
)
