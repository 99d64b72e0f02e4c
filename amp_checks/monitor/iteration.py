"""One iteration of a watched training: kept as tensors while it runs, read when the next one has ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from amp_checks.monitor.journal import Record
from amp_checks.monitor.sample import Sample


@dataclasses.dataclass(slots=True)
class Iteration:
    """What was seen of one.

    Attributes:
        step: its number, from 0.
        seconds: its wall time, what the watch itself did between iterations apart.
        scale: loss scale (float32) and growth tracker before its step; None without a scaler.
        found: the scaler's flags, one a device and optimizer: 1.0 is a gradient that is not finite.
        steps: steps of optimizers that were called; ``unscaled_steps``: those of them without a scaler.
        stepping: the optimizer whose step a scaler is to call, until it does.
        loss: what was differentiated last, under the scale.
        lr: learning rate of the first group, at the step.
        averaged: updates of averaged weights after its step.
        noticed: whether a skipped step was seen at once, with nothing read.
        batch: what the first module took; kept until it is known whether its values were finite.
    """

    step: int
    seconds: float = 0.0
    scale: tuple[torch.Tensor, torch.Tensor] | None = None
    found: list[torch.Tensor] = dataclasses.field(default_factory=list)
    steps: int = 0
    unscaled_steps: int = 0
    stepping: int | None = None
    loss: torch.Tensor | None = None
    lr: Any = None
    averaged: int = 0
    batch: Any = None
    noticed: bool = False
    sample: Sample | None = None

    def read(self, path_of: Callable[[nn.Module], str]) -> list[Record]:
        """Its records: the step, and of a sampled one what was measured."""
        infinite = [bool(flag.item()) for flag in self.found]
        scale = float(self.scale[0].item()) if self.scale else None
        loss = float(self.loss.item()) if self.loss is not None else None
        if loss is not None and scale:
            loss /= scale
        skipped = bool(infinite) and all(infinite)
        step: Record = {
            "kind": "step", "step": self.step, "taken": not skipped, "skipped": sum(infinite), "scale": scale,
            "tracker": int(self.scale[1].item()) if self.scale else None, "loss": loss,
            "lr": float(self.lr) if self.lr is not None else None, "seconds": round(self.seconds, 6),
            "averaged": self.averaged, "unscaled": self.unscaled_steps,
            "finite": not any(infinite) and (loss is None or math.isfinite(loss)),
        }  # fmt: skip
        records = [step]
        if self.sample is not None:
            sample, first = self.sample.read(path_of)
            step["finite"] = step["finite"] and first is None
            records += [first] if first is not None else []
            records.append(sample | {"memory": _memory()})
        return records


def _memory() -> int | None:
    """The peak of the device's allocator, in bytes; None without one. Asking does not wait for the device."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
