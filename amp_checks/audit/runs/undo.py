"""Faults that a run undoes, so that what follows from them can be told from what is wrong besides."""

from __future__ import annotations

import dataclasses
from typing import Any

from amp_checks.audit.watching import scaling


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """What is undone while a program runs.

    Attributes:
        gradients: each step uses what backward gave, each share without its loss scale, in place of a gradient that a
            fault of the protocol changed.
        inner: what ``autograd.grad`` gives of a scaled loss comes without the loss scale.
        boost: factor by which gradients are larger on their way backward than the program makes them.
    """

    gradients: bool = False
    inner: bool = False
    boost: float = 1.0

    def boosted(self, gradients: Any) -> Any:
        """The gradients that backward starts from."""
        if self.boost == 1.0:
            return gradients
        return tuple(None if gradient is None else gradient * self.boost for gradient in gradients)

    def without_scale(self, roots: Any, found: Any) -> Any:
        """What ``autograd.grad`` gave of these roots, without their loss scale."""
        scale = next((one for root in roots if (one := scaling.scale_of(root)) is not None), None)
        if not self.inner or scale is None:
            return found
        return tuple(None if gradient is None else gradient / scale for gradient in found)
