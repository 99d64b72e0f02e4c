"""What a forward pass keeps for its backward pass, in bytes: exact, on any device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from amp_checks.core import attempt
from amp_checks.reference.loop import Learner, Precision
from amp_checks.torch_api.numerics import seeded


def bytes_for_backward(build: Callable[[str], Learner], *, precision: Precision, device: str) -> int:
    """Bytes of all storages that one forward pass of each turn keeps for backward.

    A storage counts once, however many ops keep it. Parameters and buffers do not count: they are there anyway.

    Args:
        build: as of a `Task`; built under a fixed seed.
        precision: of the forward pass.
        device: where it runs.

    Raises:
        Raised: the forward pass raised.
    """
    total = 0
    with seeded(0):
        learner = build(device)
        there = {tensor.untyped_storage().data_ptr() for tensor in _state(learner.model)}
        for turn in learner.turns:
            # Kept until the count is made: an address must not be used again by another tensor.
            kept: dict[int, torch.UntypedStorage] = {}

            def keep(tensor: torch.Tensor, kept: dict[int, torch.UntypedStorage] = kept) -> torch.Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in there:
                    kept[storage.data_ptr()] = storage
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision.region():
                attempt("forward", turn.loss, 0, 0)
            total += sum(storage.nbytes() for storage in kept.values())
    return total


def _state(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
