"""The fused LSTM and GRU cells, which only devices have: in float32 inside, each result rounded once.

They save for backward what the devices' kernels save. Shapes: input and hidden gates ``(N, 4H)`` of an LSTM (input,
forget, cell, output gate) and ``(N, 3H)`` of a GRU (reset, update, new gate); states ``(N, H)``; biases as the gates
without ``N``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amp_checks.torch_api import private

Backward = Callable[..., tuple[Tensor | None, ...]]


def _sum_rows(gradient: Tensor, wanted: bool) -> Tensor | None:
    return gradient.sum(0) if wanted else None


def _outside_modes(backward: Backward) -> Backward:
    """The function run without function modes: these are the insides of one op, not ops of the user's."""

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        with private.no_torch_function():
            return backward(ctx, *gradients)

    return run


class _LstmCell(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        input_gates: Tensor, hidden_gates: Tensor, cell: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        gates = _lstm_gates(input_gates, hidden_gates, input_bias, hidden_bias)
        entry, forget, candidate, exit_ = gates
        new_cell = forget * cell + entry * candidate
        dtype = input_gates.dtype
        hidden = exit_ * new_cell.tanh()
        return hidden.to(dtype), new_cell.to(dtype), torch.cat(gates, 1).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, new_cell, workspace = output
        ctx.mark_non_differentiable(workspace)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, new_cell, workspace)

    @staticmethod
    @_outside_modes
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_gradient, cell_gradient, _ = gradients
        input_gates, hidden_gates, cell, input_bias, hidden_bias, new_cell, workspace = ctx.saved_tensors
        if hidden_gradient is None and cell_gradient is None:
            return (None,) * 5
        if torch.is_grad_enabled():  # to be differentiated again: from the inputs, not from their rounded results
            entry, forget, candidate, exit_ = _lstm_gates(input_gates, hidden_gates, input_bias, hidden_bias)
        else:
            entry, forget, candidate, exit_ = workspace.float().chunk(4, 1)
        squashed = new_cell.float().tanh()
        total = 0.0 if cell_gradient is None else cell_gradient.float()
        exit_gradient = torch.zeros_like(squashed)
        if hidden_gradient is not None:
            wide = hidden_gradient.float()
            exit_gradient = wide * squashed * (1 - exit_) * exit_
            total = wide * exit_ * (1 - squashed * squashed) + total
        gates_gradient = torch.cat(
            [
                total * candidate * (1 - entry) * entry,
                total * cell * (1 - forget) * forget,
                total * entry * (1 - candidate * candidate),
                exit_gradient,
            ],
            1,
        ).to(input_gates.dtype)
        needed = ctx.needs_input_grad
        return (
            gates_gradient,
            gates_gradient,
            (total * forget).to(cell.dtype) if needed[2] else None,
            _sum_rows(gates_gradient, needed[3]),
            _sum_rows(gates_gradient, needed[4]),
        )


def _lstm_gates(
    input_gates: Tensor, hidden_gates: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gates = input_gates.float() + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + (input_bias.float() + hidden_bias)
    entry, forget, candidate, exit_ = gates.chunk(4, 1)
    return entry.sigmoid(), forget.sigmoid(), candidate.tanh(), exit_.sigmoid()


class _GruCell(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        input_gates: Tensor, hidden_gates: Tensor, hidden: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        reset, update, new, from_hidden = _gru_gates(input_gates, hidden_gates, input_bias, hidden_bias)
        wide = hidden.float()
        dtype = input_gates.dtype
        workspace = torch.cat([reset, update, new, wide, from_hidden], 1).to(dtype)
        return (new + update * (wide - new)).to(dtype), workspace

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    @_outside_modes
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, _ = gradients
        input_gates, hidden_gates, hidden, input_bias, hidden_bias, workspace = ctx.saved_tensors
        if gradient is None:
            return (None,) * 5
        if torch.is_grad_enabled():  # to be differentiated again: from the inputs, not from their rounded results
            reset, update, new, from_hidden = _gru_gates(input_gates, hidden_gates, input_bias, hidden_bias)
            state = hidden.float()
        else:
            reset, update, new, state, from_hidden = workspace.float().chunk(5, 1)
        wide = gradient.float()
        new_gradient = wide * (1 - update) * (1 - new * new)
        update_gradient = wide * (state - new) * (1 - update) * update
        reset_gradient = new_gradient * from_hidden * (1 - reset) * reset
        dtype = input_gates.dtype
        input_gradient = torch.cat([reset_gradient, update_gradient, new_gradient], 1).to(dtype)
        hidden_gradient = torch.cat([reset_gradient, update_gradient, new_gradient * reset], 1).to(dtype)
        needed = ctx.needs_input_grad
        return (
            input_gradient,
            hidden_gradient,
            (wide * update).to(hidden.dtype) if needed[2] else None,
            _sum_rows(input_gradient, needed[3]),
            _sum_rows(hidden_gradient, needed[4]),
        )


def _gru_gates(
    input_gates: Tensor, hidden_gates: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from_input, from_hidden = input_gates.float(), hidden_gates.float()
    if input_bias is not None and hidden_bias is not None:
        from_input, from_hidden = from_input + input_bias, from_hidden + hidden_bias
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    return reset, (input_update + hidden_update).sigmoid(), (input_new + reset * hidden_new).tanh(), hidden_new


def fused_lstm_cell(
    op: Any,
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> Any:
    """Of ``_thnn_fused_lstm_cell``: hidden state, cell state, and the activated gates as workspace."""
    del op
    return private.apply_function(_LstmCell, input_gates, hidden_gates, cell, input_bias, hidden_bias)


def fused_gru_cell(
    op: Any,
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> Any:
    """Of ``_thnn_fused_gru_cell``: hidden state, and gates and state ``(N, 5H)`` as workspace."""
    del op
    return private.apply_function(_GruCell, input_gates, hidden_gates, hidden, input_bias, hidden_bias)
