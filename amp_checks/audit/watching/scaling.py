"""Which losses carry a loss scale: marks on the autograd graph, which live as long as it does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

_MARK = "amp_checks.loss_scale"
_FARTHEST = 16
"""Nodes to look at below a loss: a mean over a few scaled losses is as scaled as they are."""


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


def mark(scaled: Any, scale: float) -> None:
    """Note that these losses were scaled."""
    for tensor in tensors(scaled):
        if tensor.grad_fn is not None:
            metadata: dict[str, float] = tensor.grad_fn.metadata  # type: ignore[assignment]
            metadata[_MARK] = scale


def scale_of(loss: Any) -> float | None:
    """The scale that a loss, or what it was made of, was given; None: it was not scaled."""
    node = getattr(loss, "grad_fn", None)
    queue = deque([node] if node is not None else [])
    seen = 0
    while queue and seen < _FARTHEST:
        node = queue.popleft()
        seen += 1
        scale = node.metadata.get(_MARK)
        if scale is not None:
            return float(scale)
        queue.extend(following for following, _ in node.next_functions if following is not None)
    return None
