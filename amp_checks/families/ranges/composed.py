"""Ranges of what models compose of several ops: norms written out, small eps, masked attention, losses by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from amp_checks.families.ranges.inputs import Input

LONG = 4096


def softmax_without_shift(x: torch.Tensor) -> torch.Tensor:
    exponentials = x.exp()
    found: torch.Tensor = exponentials / exponentials.sum(-1, keepdim=True)
    return found


def layer_norm_by_hand(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    found: torch.Tensor = centred / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
    return found


def rms_norm_by_hand(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    found: torch.Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return found


def over_norm(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    found: torch.Tensor = x / (x.norm(dim=-1, keepdim=True) + eps)
    return found


def over_sum(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    return x / (x.sum(-1, keepdim=True) + eps)


def mse_by_hand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y).square().mean()


def dice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 1 - (2 * (x * y).sum() + 1) / (x.sum() + y.sum() + 1)


def instance_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.instance_norm(x, eps=1e-5)


def batch_norm_training(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    return functional.batch_norm(x, None, None, training=True, eps=eps)


MASKED_ROW = 3
"""The query whose keys are all masked."""


def _keep(scores: torch.Tensor) -> torch.Tensor:
    """True where a query may look: everywhere, but nowhere for `MASKED_ROW`."""
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    keep[MASKED_ROW] = False
    return keep


def _additive(scores: torch.Tensor, value: float) -> torch.Tensor:
    mask = torch.zeros(scores.shape[-2:], dtype=scores.dtype, device=scores.device)
    return mask.masked_fill(~_keep(scores), value)


def _least(tensor: torch.Tensor) -> float:
    return torch.finfo(tensor.dtype).min


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As written out in many models: the scores are scaled after their product."""
    given: torch.Tensor = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
    return given


def attention_masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: str) -> torch.Tensor:
    """The same with a row that masks every key: ``fill -inf``, ``fill min``, ``add -inf``, ``add min`` or
    ``add min twice`` (a padding mask and a causal one).
    """
    scores = q @ k.mT / q.shape[-1] ** 0.5
    match mask.split():
        case ["fill", value]:
            scores = scores.masked_fill(~_keep(scores), -torch.inf if value == "-inf" else _least(scores))
        case ["add", "min", "twice"]:
            scores = scores + (_additive(scores, _least(scores)) + _additive(scores, _least(scores)))
        case ["add", value]:
            scores = scores + _additive(scores, -torch.inf if value == "-inf" else _least(scores))
    given: torch.Tensor = scores.softmax(-1) @ v
    return given


def sdpa_masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: str) -> torch.Tensor:
    """`scaled_dot_product_attention` with a row that masks every key: ``bool``, ``-inf`` or ``min``."""
    shape = q.new_empty(q.shape[-2], k.shape[-2])
    match mask:
        case "bool":
            given = _keep(shape)
        case value:
            given = _additive(shape, -torch.inf if value == "-inf" else _least(q))
    return functional.scaled_dot_product_attention(q, k, v, given)


def sdpa_exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: str) -> torch.Tensor:
    """What `sdpa_masked` promises, by other code: a masked row is 0, or with the least number of a dtype the mean."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask == "min":
        scores = scores.masked_fill(~_keep(scores), _least(scores))
        averaged: torch.Tensor = scores.softmax(-1) @ v
        return averaged
    zeroed: torch.Tensor = (scores.softmax(-1) * _keep(scores)) @ v
    return zeroed


def multi_head(
    x: torch.Tensor, into: torch.Tensor, out: torch.Tensor, *, need_weights: bool, masked: bool = True
) -> Any:
    """`nn.MultiheadAttention` of 2 heads on a sequence, by its functional form, with a row that masks every key."""
    mask = ~_keep(x.new_empty(x.shape[0], x.shape[0])) if masked else None
    return functional.multi_head_attention_forward(
        *(x, x, x, x.shape[-1], 2, into, None, None, None, False, 0.0, out, None),
        need_weights=need_weights,
        attn_mask=mask,
    )[0]


QKV = tuple(Input(shape=(2, 6, 8)) for _ in range(3))
QKV_BATCHED = tuple(Input(shape=(1, 2, 6, 8)) for _ in range(3))
"""Four dimensions: with three, older versions of torch take another kernel."""
HEADS = (Input(shape=(6, 2, 8)), Input(shape=(24, 8), scaled=False), Input(shape=(8, 8), scaled=False))
