"""A story: a check of one promise under its row; and the smallest training loop, which most stories run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from amp_checks.core import Check, attempt
from amp_checks.families.scaler.rows import ScalerRow
from amp_checks.torch_api.backend import Backend

C = TypeVar("C", bound=Check)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoryCase(ScalerRow):
    """A promise with its own check.

    Attributes:
        check: the code; its docstring begins with the promise.
        variant: which variant of the check, where it has several.
        real_device: only on backends of this device type, not emulated; empty for all.
    """

    check: Check
    variant: str = ""
    real_device: str = ""

    def runs_on(self, backend: Backend) -> bool:
        return not self.real_device or (backend.device_type == self.real_device and not backend.emulated)


ROWS: list[StoryCase] = []
"""Every story, as the modules that tell them are imported."""


def story(
    name: str, *behaviours: int, source: str, variant: str = "", real_device: str = "", full: bool = False
) -> Callable[[C], C]:
    """Make the decorated check a row of that id; a check with several variants is decorated once for each."""

    def add(check: C) -> C:
        ROWS.append(
            StoryCase(
                id=name,
                behaviours=behaviours,
                source=source,
                check=check,
                variant=variant,
                real_device=real_device,
                full=full,
            )
        )
        return check

    return add


def leaf_of(backend: Backend, *values: float) -> torch.Tensor:
    """A float32 leaf that requires a gradient; ``(1.0, 2.0)`` where no values are given."""
    return torch.tensor(values or (1.0, 2.0), device=backend.device_type, requires_grad=True)


class Loop:
    """A training loop of one parameter, whose loss has the same gradient everywhere.

    Args:
        backend: where, and whose scaler.
        leaf: the parameter; ``[1.0, 2.0]`` where none is given.
        optimizer: a class of optimizers.
        settings: of the scaler; its scale begins at 8.
        arguments: of the optimizer; its learning rate is 1 where none is given.
    """

    def __init__(
        self,
        backend: Backend,
        leaf: torch.Tensor | None = None,
        *,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        settings: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        self.scaler = backend.scaler(**{"init_scale": 8.0, **(settings or {})})
        self.leaf = leaf_of(backend) if leaf is None else leaf
        self.optimizer = optimizer([self.leaf], **{"lr": 1.0, **arguments})

    def backward(self, weight: float = 1.0) -> None:
        """``scaler.scale(loss).backward()`` into cleared gradients, for a loss whose gradient is ``weight``."""
        self.optimizer.zero_grad()
        attempt("scaler.scale", self.scaler.scale, (self.leaf * weight).sum()).backward()

    def unscale(self) -> None:
        attempt("scaler.unscale_", self.scaler.unscale_, self.optimizer)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return attempt("scaler.step", self.scaler.step, self.optimizer, *args, **kwargs)

    def update(self) -> None:
        attempt("scaler.update", self.scaler.update)

    def iterate(self, weight: float = 1.0, *, unscale: bool = False) -> None:
        """One iteration: backward, step, update."""
        self.backward(weight)
        if unscale:
            self.unscale()
        self.step()
        self.update()
