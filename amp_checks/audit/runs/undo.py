"""An intervention that undoes one fault while the program runs, to separate its effects from other faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from amp_checks.audit.runs.change import Change
from amp_checks.audit.watching import scaling
from amp_checks.audit.watching.gradients import Gradient
from amp_checks.audit.watching.state import Listener, around
from amp_checks.audit.watching.watch import Watch
from amp_checks.core import DEVICE_TYPES
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Undo(Change, Listener):
    """What is undone.

    Attributes:
        gradients: each step uses what backward gave, each share without its loss scale, in place of a gradient that a
            fault of the protocol changed.
        inner: what ``autograd.grad`` gives of a scaled loss comes without the loss scale.
        cache: casts of weights are not kept.
        backward: backward runs outside of all regions.
        boost: factor by which gradients are larger on their way backward than the program makes them. An infinite one
            is for `Evidence.without`: the largest power of two that leaves a bit of headroom in backward.
    """

    words: ClassVar[str] = "one fault undone"
    gradients: bool = False
    inner: bool = False
    cache: bool = False
    backward: bool = False
    boost: float = 1.0

    def around(self, watch: Watch) -> AbstractContextManager[object]:
        watch.state.book.keeps_raw, watch.state.book.boost = True, self.boost
        watch.state.listeners.append(self)
        patches = Patches()
        if self.cache:
            patches.replace(torch.autocast, "__enter__", around(_enter_without_cache))
        if self.backward:
            patches.replace(*private.backward_engine(), around(_run_outside))
        return patches

    def initial_gradients(self, roots: Any, gradients: Any) -> Any:
        del roots
        if self.boost == 1.0:
            return gradients
        return tuple(None if gradient is None else gradient * self.boost for gradient in gradients)

    def grad_gave(self, roots: Any, results: Any) -> Any:
        scale = next((one for root in roots if (one := scaling.scale_of(root)) is not None), None)
        if not self.inner or scale is None:
            return results
        return tuple(None if result is None else result / scale for result in results)

    def step_starts(self, optimizer: Any, gradients: Sequence[Gradient]) -> None:
        scale = getattr(optimizer, "grad_scale", None)
        for gradient in gradients if self.gradients else ():
            now = gradient.parameter.grad
            if now is not None and gradient.modified and gradient.raw is not None:
                now.copy_(gradient.raw if scale is None else gradient.raw * scale)


def _enter_without_cache(original: Any, region: Any) -> Any:
    result = original(region)
    torch.set_autocast_cache_enabled(False)  # leaving the region restores it
    return result


def _run_outside(original: Any, *args: Any, **kwargs: Any) -> Any:
    enabled = [name for name in DEVICE_TYPES if torch.is_autocast_enabled(name)]
    for name in enabled:
        torch.set_autocast_enabled(name, False)
    try:
        return original(*args, **kwargs)
    finally:
        for name in enabled:
            torch.set_autocast_enabled(name, True)
