"""A rehearsed overflow: gradients are infinite in one iteration, as they are when the loss scale is too large.

A scaled loss starts from an infinite gradient, so that hooks and custom functions meet it as they would; whatever they
leave is made infinite after backward, so that what follows meets it too. What turns it into finite numbers hides it
from the scaler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from amp_checks.audit.watching import scaling
from amp_checks.audit.watching.gradients import Gradient, State
from amp_checks.audit.watching.places import Place, line, user_frame


class Rehearsal:
    """The overflow of a run.

    Args:
        at: iteration in which gradients overflow; None: they never do.
    """

    def __init__(self, at: int | None) -> None:
        self.at = at
        self._starts_at: Place | None = None
        self._hidden_at: Place | None = None
        self._in_backward = False

    def seeds(self, step: int, roots: Any, gradients: Any) -> Any:
        """What the backward of these losses starts from; called from the user's line."""
        if step != self.at or all(scaling.scale_of(root) is None for root in roots):
            return gradients
        self._starts_at, self._in_backward, self._hidden_at = user_frame(), True, None
        return tuple(None if gradient is None else gradient * torch.inf for gradient in gradients)

    def after_backward(self, groups: Iterable[Iterable[Gradient]]) -> str | None:
        """Make all scaled gradients of these groups, one for each optimizer and one for all, infinite.

        Returns:
            Where user code in backward made finite numbers of infinite ones, if a group has nothing else left; or None.
        """
        self._in_backward = False
        found = [[one for one in group if one.parameter.grad is not None] for group in groups]
        scaled = [[one for one in group if one.state is State.SCALED] for group in found]
        hidden = any(group and all(map(_holds_finite, group)) for group in scaled)
        for gradient in (one for group in scaled for one in group):
            value = gradient.parameter.grad
            assert value is not None
            if value.layout is torch.strided:  # others have no such kernel, and are what backward made of infinity
                value.fill_(torch.inf)
            gradient.rehearsed = True
        where, self._hidden_at = self._hidden_at, None
        return line(where) if hidden else None

    def seen(self, gradients: Iterable[Gradient], infinite: bool) -> dict[str, Any]:
        """What an event tells of gradients that a scaler has looked at, and of which it found some ``infinite`` or not.

        ``hidden``: they were infinite; ``zero``: and are zero; ``hidden_at``: the line of user code that last made
        finite numbers of infinite ones, since backward.
        """
        were = [gradient for gradient in gradients if gradient.rehearsed and gradient.parameter.grad is not None]
        for gradient in were:
            gradient.rehearsed = False
        hidden = bool(were) and not infinite
        zero = hidden and all(gradient.is_zero() for gradient in were)
        return {"hidden": hidden, "zero": zero, "hidden_at": line(self._hidden_at)}

    def overflowed(self, values: Any) -> bool:
        """Whether an op is given what is not finite."""
        return any(not _is_finite(value) for value in _floating(values))

    def note(self, changed: Any) -> None:
        """An op was given what is not finite: what it made or changed."""
        place = user_frame()
        made = _floating(changed)
        in_torch = self._in_backward and place == self._starts_at
        if made and not in_torch and all(map(_is_finite, made)):
            self._hidden_at = place


def _holds_finite(gradient: Gradient) -> bool:
    found = _floating(gradient.parameter.grad)
    return bool(found) and all(map(_is_finite, found))


def _floating(values: Any) -> list[Tensor]:
    return [value for value in scaling.tensors(values) if _can_be_looked_at(value)]


def _can_be_looked_at(value: Tensor) -> bool:
    """Whether there is a function that looks for an infinity in it.

    There is none for numbers of 8 bits, nested tensors, compressed sparse ones, and those that hold no data.
    """
    plain = type(value) in (Tensor, torch.nn.Parameter) and not value.is_nested and not value.is_meta
    numbers = value.is_floating_point() and value.dtype.itemsize > 1
    return plain and numbers and value.layout in (torch.strided, torch.sparse_coo)


def _is_finite(value: Tensor) -> bool:
    return bool((value.coalesce().values() if value.is_sparse else value).isfinite().all())
