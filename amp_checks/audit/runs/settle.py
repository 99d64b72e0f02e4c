"""Where the loss scale settles: a case has few batches, and its first scale may need more of them to come down."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, ClassVar

import torch

from amp_checks.audit.runs.change import Change
from amp_checks.audit.watching.events import ScalerStep
from amp_checks.audit.watching.state import around
from amp_checks.audit.watching.trace import Trace
from amp_checks.audit.watching.watch import Watch
from amp_checks.torch_api.patching import Patches

LEAST_SCALE = 1.0
"""Below it a loss scale only loses gradients: what overflows at 1 is the program's own."""


@dataclasses.dataclass(frozen=True, slots=True)
class StartScale(Change):
    """Every scaler starts at that loss scale."""

    words: ClassVar[str] = "from loss scale {scale:g}"

    scale: float

    def around(self, watch: Watch) -> Patches:
        del watch
        patches = Patches()

        def make(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
            if len(args) > 1:
                args = (args[0], self.scale, *args[2:])
            else:
                kwargs = {**kwargs, "init_scale": self.scale}
            original(scaler, *args, **kwargs)

        patches.replace(torch.amp.GradScaler, "__init__", around(make))
        return patches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """That every step of the case was skipped, from its own loss scale on.

    Attributes:
        own, start: the first loss scale of the program, and the one that it is audited from.
        never: steps are skipped at every loss scale, down to `LEAST_SCALE`.
    """

    own: float
    start: float
    never: bool


def all_skipped(trace: Trace) -> bool:
    """Whether finite losses gave nothing but skipped steps, and a loss scale that falls."""
    steps = trace.of(ScalerStep)
    if not steps or trace.failure is not None or not all(step.enabled and step.skipped for step in steps):
        return False
    fell = bool(trace.scales) and trace.scales[-1] < (trace.first_scale or 0.0)
    return fell and all(math.isfinite(loss) for _, loss in trace.losses)


def one_waits(trace: Trace) -> bool:
    """Whether an optimizer had nothing but skipped steps, in all of which the loss scale fell, and another stepped."""
    taken: dict[int, bool] = {}
    for step in trace.of(ScalerStep):
        taken[step.optimizer] = taken.get(step.optimizer, False) or not (step.enabled and step.skipped)
    scales = [trace.first_scale or 0.0, *trace.scales]
    falls = len(scales) > 1 and all(after < before for before, after in itertools.pairwise(scales))
    return falls and trace.failure is None and len(set(taken.values())) == 2
