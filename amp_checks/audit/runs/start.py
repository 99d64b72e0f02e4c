"""What a run starts from: two runs that start from other weights or other data cannot be compared."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch

from amp_checks.audit.case import Training
from amp_checks.audit.watching.scaling import tensors
from amp_checks.core import UsageError

Start = Mapping[str, tuple[torch.dtype, int]]


def start_of(training: Training) -> dict[str, tuple[torch.dtype, int]]:
    """The dtype of each parameter and of the tensors of each batch, and a checksum of their values.

    Batches that are no list are not looked at: to read a loader is to draw from its random numbers.
    """
    named: list[tuple[str, torch.Tensor]] = list(training.named_parameters().items())
    if isinstance(training.batches, list | tuple):
        named += [(f"batches[{n}]", item) for n, batch in enumerate(training.batches) for item in tensors(batch)]
    found: dict[str, tuple[torch.dtype, int]] = {}
    with torch.no_grad():
        for name, tensor in named:
            try:
                values = tensor.detach().cpu()
                values = (torch.view_as_real(values) if values.is_complex() else values).double().contiguous()
                found[name] = tensor.dtype, zlib.crc32(values.numpy().tobytes(), found.get(name, (None, 0))[1])
            except (RuntimeError, TypeError, ValueError):
                continue  # sparse, quantized, nested: what holds no plain values
    return found


def check_alike(case: str, amp: Start, fp32: Start) -> None:
    """Refuse what was not built anew, or not built alike, for the second run.

    Raises:
        UsageError: weights or batches differ: says which, and what to do.
    """
    for name, (dtype, checksum) in amp.items():
        if name in fp32 and fp32[name][0] == dtype and fp32[name][1] != checksum:
            raise UsageError(
                f"the case {case} must build the same at each call, but {name} is not what it was: make model and "
                "batches anew in the case, and seed what they draw from (torch, random and numpy.random are seeded "
                "before each call; a numpy.random.default_rng() is not)"
            )
