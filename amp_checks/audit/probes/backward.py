"""Whether gradients depend on the loss scale, and which op is to blame: float64 with the scaler and without.

Backward is linear: with nothing rounded, the loss scale alone must not show in unscaled gradients. Where it does, a
hook or a custom function takes scaled gradients for unscaled ones: a bound, a term that is added, a norm.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from amp_checks.audit.places import Place, line, user_frame
from amp_checks.audit.probes.recorder import Recorder
from amp_checks.audit.probes.values import sample
from amp_checks.audit.watching import readable
from amp_checks.audit.watching.state import RunState
from amp_checks.torch_api import private

_POWERS = (1, 0, -1, 2, -2)
"""What the loss scale may be raised to in what user code computes on its way: a norm, its inverse, squares of it."""
_SAME = 1e-5
"""Relative difference of what is the same: float32's rounding of an inverse scale that is no power of two."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOp:
    """The op, in user code that runs in backward, at which gradients stop to follow the loss scale; ``where``: line."""

    op: str
    where: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What one op of user code made in backward, or a sample of it, in float64."""

    by: SourceOp
    value: Tensor


class BackwardRecorder(Recorder[list[Made]]):
    """Records what user code makes while backward runs: hooks, custom functions."""

    def __init__(self, state: RunState, step: int) -> None:
        super().__init__(state, step)
        self._made: list[Made] = []
        self._starts_at: Place | None = None

    def result(self) -> list[Made]:
        """In the order in which it was made."""
        return self._made

    def backward_starts(self, roots: Any) -> None:
        """What backward itself does is done at this line."""
        del roots
        self._starts_at = user_frame()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        run = self._run
        if run.step == self._step and run.backward_depth and not run.quiet and not private.is_aliasing(func):
            place = user_frame()
            if place != self._starts_at:
                with private.no_function_modes():
                    self._record(func, args, out, place)
        return out

    def _record(self, func: Any, args: tuple[Any, ...], out: Any, place: Place | None) -> None:
        changed = args[0] if private.is_mutating(func) else out
        first = changed[0] if isinstance(changed, tuple | list) and changed else changed
        if isinstance(first, Tensor) and first.is_floating_point() and readable.values(first) is not None:
            value = sample((first if first.layout is torch.strided else first.to_dense()).detach().reshape(-1)).to(
                device="cpu", dtype=torch.float64
            )
            self._made.append(Made(by=SourceOp(op=func.name(), where=line(place)), value=value))


def find(plain: list[Made], scaled: list[Made], scale: float) -> SourceOp | None:
    """The first op whose output no power of the loss scale turns into that of the run without scaler, or None.

    Where each step by itself does (a sign forgets all sizes), it is the last op that gradients went through.
    """
    last = None
    for left, right in zip(scaled, plain, strict=False):
        if left.by != right.by or left.value.shape != right.value.shape:
            break
        last = left.by
        if not any(_is_same(left.value, right.value * scale**power) for power in _POWERS):
            return last
    return last


def _is_same(actual: Tensor, expected: Tensor) -> bool:
    return bool((actual - expected).norm() <= _SAME * expected.norm())
