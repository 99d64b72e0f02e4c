"""Whole RNN layers as one op, as cuDNN runs them: float32 inside, each result rounded once.

Without an autocast rule of its own, ``lstm`` reaches ``_cudnn_rnn`` on CUDA, whose rule casts input, states and
weights; to float16, in a region of any dtype (so did the rules of torch 2.11.0, 2.14.1 and 2.15.0 when called).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import LOW

_aten = torch.ops.aten

CAST_TO = torch.float16
"""The dtype to which the rule of `private.CUDNN_RNN` casts, whatever the region's."""

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's number for each kind of layer."""

LAYERS: dict[Any, int] = {
    getattr(getattr(_aten, name), overload): mode for name, mode in _MODES.items() for overload in ("input", "data")
}

_PACKED = frozenset(getattr(_aten, name).data for name in _MODES)

_ELIGIBLE = (torch.float32, *LOW)


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """One call of a layer.

    Attributes:
        op: the overload of `LAYERS` that is called.
        sizes: batch sizes of a packed sequence, or None.
        states: how many of its tensors are states, after the input; weights are the rest.
        settings: what follows the weights in the call.
    """

    op: Any
    sizes: Tensor | None
    states: int
    settings: tuple[Any, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The CPU's own layer on input, states, weights, all of one dtype."""
        states = tensors[1 : 1 + self.states]
        packed = () if self.sizes is None else (self.sizes,)
        hidden = list(states) if self.op in (_aten.lstm.input, _aten.lstm.data) else states[0]
        weights = list(tensors[1 + self.states :])
        found: tuple[Tensor, ...] = self.op(tensors[0], *packed, hidden, weights, *self.settings)
        return found

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers: dropout between the layers of a stack, in training."""
        _, layers, dropout, train, *_ = self.settings
        return bool(train and dropout > 0 and layers > 1)


def layer_of(op: Any, args: tuple[Any, ...]) -> tuple[Layer, list[Tensor]] | None:
    """The layer and its tensors (input, states, weights), or None where cuDNN would not take it.

    Args:
        op: one of `LAYERS`.
        args: of the call, on inner tensors; all by position.
    """
    given, *rest = args
    sizes = rest.pop(0) if _is_packed(op) else None
    hidden, weights, *settings = rest
    states = list(hidden) if isinstance(hidden, list | tuple) else [hidden]
    tensors = [given, *states, *weights]
    if not given.numel() or any(tensor.dtype not in _ELIGIBLE for tensor in tensors):
        return None
    return Layer(op, sizes, len(states), tuple(settings)), tensors


def with_sizes_on_the_host(op: Any, args: tuple[Any, ...], unwrap: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The arguments of a layer; of one on a packed sequence, with its batch sizes where its code reads them."""
    return (args[0], unwrap(args[1]), *args[2:]) if _is_packed(op) else args


def _is_packed(op: Any) -> bool:
    return op in _PACKED


def cast(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The rule of `private.CUDNN_RNN`."""
    return [tensor.to(CAST_TO) for tensor in tensors]


def run(layer: Layer, low: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run a layer in float32 on tensors in the low dtype, and round its results.

    For backward it saves the tensors that it was given, as cuDNN does; cuDNN's workspace (its "reserve") is not kept,
    but computed again.
    """
    found: tuple[Tensor, ...] = private.apply_function(_Layer, layer, *low)
    return found


def seen_as(layer: Layer, low: Sequence[Tensor]) -> tuple[Any, ...]:
    """The arguments of `private.CUDNN_RNN` that stand for the call."""
    given, *rest = low
    states, weights = rest[: layer.states], rest[layer.states :]
    biases, layers, dropout, train, bidirectional, *batch_first = layer.settings
    of_one = len(weights) // (layers * (2 if bidirectional else 1))
    projection = of_one == (5 if biases else 3)
    return (
        *(given, list(weights), of_one, None, states[0], states[1] if len(states) > 1 else None, LAYERS[layer.op]),
        *(weights[1].shape[0] // {0: 1, 1: 1, 2: 4, 3: 3}[LAYERS[layer.op]], states[0].shape[-1] if projection else 0),
        *(layers, bool(batch_first and batch_first[0]), dropout, train, bidirectional),
        *([] if layer.sizes is None else layer.sizes.tolist(), None),
    )


class _Layer(torch.autograd.Function):
    """A layer whose backward runs it again: what it records in between is not kept."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, *low: Tensor) -> tuple[Tensor, ...]:
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*low)
        ctx.random = torch.get_rng_state() if layer.draws else None
        return tuple([out.to(CAST_TO) for out in layer.run([tensor.float() for tensor in low])])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        again = torch.is_grad_enabled()
        with private.no_torch_function(), torch.enable_grad():
            wide = [tensor.float() for tensor in ctx.saved_tensors]
            if not again:
                wide = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(wide, needed, strict=True)]
            outputs = _repeat(ctx.layer, wide, ctx.random)
            reached = [
                (out, gradient) for out, gradient in zip(outputs, gradients, strict=True) if gradient is not None
            ]
            found = iter(
                torch.autograd.grad(
                    [out for out, _ in reached],
                    list(itertools.compress(wide, needed)),
                    [gradient.float() for _, gradient in reached],
                    allow_unused=True,
                    create_graph=again,
                )
            )
            rounded = [_round(next(found)) if wanted else None for wanted in needed]
        return None, *rounded


def _round(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.to(CAST_TO)


def _repeat(layer: Layer, wide: Sequence[Tensor], random: Tensor | None) -> tuple[Tensor, ...]:
    if random is None:
        return layer.run(wide)
    with torch.random.fork_rng(devices=()):
        torch.set_rng_state(random)
        return layer.run(wide)
