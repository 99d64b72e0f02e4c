"""The state of every gradient: scaled or not, accumulated onto what, stepped with or not."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping

import torch

from amp_checks.audit.watching import readable
from amp_checks.torch_api import private


class State(enum.Enum):
    """What a gradient holds."""

    NONE = "nothing yet"
    PLAIN = "gradients of a loss that was not scaled"
    SCALED = "scaled gradients"
    UNSCALED = "unscaled gradients"


@dataclasses.dataclass(slots=True, eq=False)
class Gradient:
    """One parameter's gradient.

    Attributes:
        name, parameter: whose.
        state: what it holds.
        scale: the loss scale it was last given, or None.
        plain: line of a backward whose loss was not scaled, since it was last zeroed; "" where that is unknown; None
            where there was none.
        stepped, stepped_before: its optimizer stepped, or skipped, since it was last zeroed; so already before the
            backward that runs.
        received: whether a backward ever wrote to it.
        cleared_at: the line that cleared it after a backward and before any step; or None.
        stepped_at: the line at which a scaler last did, or None.
        undone_at: the line at which the program divided it by its loss scale, since its last backward; or None.
        updated: the scaler was updated since it was last written, and no step was made with it.
        updated_at: the line of that update.
        scaled_at: the line of the backward that last wrote to it under a loss scale.
        unscaled_by: number of the optimizer for which a scaler divided it, since its last backward; or None.
        carried: it was added to although its optimizer had stepped with it.
        injected: it was made infinite, and no scaler has seen it since, nor was it zeroed before another backward.
        modified: by a fault of the protocol that a rule names, it is not what backward gave, divided by the loss scale.
        raw: what backward gave since it was last zeroed, each share without its loss scale; see `Book.keeps_raw`.
        factors: constants that its loss was multiplied by, since it was last zeroed.
        multiplied: constants that it was multiplied by itself since its last backward, each with whether in place.
        handed: what ``autograd.grad`` gave of it last, its loss scale or None, and the line; a program may assign it.
        before: what was there before the backward that runs.
        held, memory, version: the tensor as it was last seen; its memory is kept, so that it is not given to another.
    """

    name: str
    parameter: torch.Tensor
    state: State = State.NONE
    scale: float | None = None
    plain: str | None = None
    stepped: bool = False
    stepped_before: bool = False
    received: bool = False
    cleared_at: str | None = None
    stepped_at: str | None = None
    undone_at: str | None = None
    updated: bool = False
    updated_at: str | None = None
    scaled_at: str | None = None
    unscaled_by: int | None = None
    carried: bool = False
    injected: bool = False
    modified: bool = False
    raw: torch.Tensor | None = None
    factors: tuple[float, ...] = ()
    multiplied: tuple[tuple[float, bool], ...] = ()
    handed: tuple[torch.Tensor, float | None, str | None] | None = None
    held: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    before: torch.Tensor | None = None
    version: int = -1

    def reset(self, where: str | None = None) -> None:
        """It was zeroed, by the program at that line, or is gone."""
        if where is not None and self.state is not State.NONE and not self.stepped:
            self.cleared_at = where
        self.state, self.scale, self.plain = State.NONE, None, None
        self.stepped_at = self.undone_at = self.unscaled_by = None
        self.stepped = self.updated = self.carried = self.modified = False
        self.held = self.memory = self.raw = self.before = None
        self.factors = self.multiplied = ()

    def adopt(self) -> None:
        """Where the program has put what ``autograd.grad`` gave in the gradient's place, it is what backward gave."""
        now = self.parameter.grad
        if self.handed is None or now is None or now.layout is not torch.strided:
            return
        result, scale, where = self.handed
        if now.data_ptr() != result.data_ptr():
            return
        self.reset()
        self.handed, self.held, self.scale = None, now, scale
        self.state = State.PLAIN if scale is None else State.SCALED
        if scale is None:
            self.plain = where or ""

    def undone(self, where: str | None) -> None:
        """The program divided it by its loss scale."""
        self.state, self.undone_at = State.UNSCALED, where or ""

    def was_zeroed(self) -> bool:
        """Whether there is nothing in it, though something else was there when it was last seen."""
        now = self.parameter.grad
        if now is None:
            return True
        moved = now.layout is torch.strided and self.memory is not None and now.data_ptr() != self.memory.data_ptr()
        return (private.version_of(now) != self.version or moved) and self.is_zero()

    def is_zero(self) -> bool:
        """Whether it is there, and holds nothing but zeros."""
        now = self.parameter.grad
        return now is not None and readable.is_zero(now)

    def hold(self, now: torch.Tensor) -> None:
        """Note that this is there."""
        self.held, self.memory, self.version = now, now.detach(), private.version_of(now)

    def note_before(self, now: torch.Tensor | None) -> None:
        """Keep what is there before a backward."""
        self.before = now.detach().clone() if now is not None and now.layout is torch.strided else None
        if self.before is None or not bool(self.before.any()):
            self.raw = None  # zeroed by the program

    def note_raw(self, now: torch.Tensor, *, scale: float, boost: float) -> None:
        """Add what a backward gave; of one that was boosted, take the boost back."""
        if now.layout is not torch.strided:
            return
        share = now.detach() if self.before is None else now.detach() - self.before
        if boost != 1.0:
            share = share / boost
            now.detach().copy_(share if self.before is None else self.before + share)
        share = share / scale
        self.raw = share if self.raw is None else self.raw + share
        self.before = None


def cleared_at(gradients: Iterable[Gradient]) -> str | None:
    """The line that cleared all gradients of a step; None where some are there, or none came."""
    known = list(gradients)
    lines = [gradient.cleared_at for gradient in known if gradient.cleared_at is not None]
    if not lines or any(one.parameter.grad is not None and not one.is_zero() for one in known):
        return None
    return lines[0]


class Book:
    """The state of the gradients of all known parameters.

    Attributes:
        gradients: by the parameter's ``id``.
        keeps_raw: whether what backward gave is kept too.
        boost: the factor by which a run makes gradients larger on their way backward; it is taken back from each.
    """

    def __init__(self) -> None:
        self.gradients: dict[int, Gradient] = {}
        self.keeps_raw = False
        self.boost = 1.0

    def know(self, named: Mapping[str, torch.Tensor]) -> None:
        """Add parameters; one that is known keeps its name."""
        for name, parameter in named.items():
            if parameter.requires_grad and id(parameter) not in self.gradients:
                self.gradients[id(parameter)] = Gradient(name, parameter)

    def of(self, parameters: Iterable[torch.Tensor]) -> list[Gradient]:
        """The gradients of known parameters."""
        found = (self.gradients.get(id(parameter)) for parameter in parameters)
        known = [gradient for gradient in found if gradient is not None]
        for gradient in known:
            gradient.adopt()
        return known

    def pointers(self) -> dict[int, Gradient]:
        """Address of each gradient that is there."""
        return {
            gradient.held.data_ptr(): gradient
            for gradient in self.gradients.values()
            if gradient.held is not None and gradient.held.layout is torch.strided
        }

    def forget_raw(self) -> None:
        """What backward gave is not known, nor under which of several loss scales."""
        for gradient in self.gradients.values():
            gradient.raw = gradient.scale = None

    def before_backward(self) -> None:
        """Note what is there already."""
        for gradient in self.gradients.values():
            now = gradient.parameter.grad
            if self.keeps_raw:
                gradient.note_before(now)
            if gradient.was_zeroed():
                gradient.reset()
                gradient.injected = False
            gradient.stepped_before = gradient.stepped
            if now is not None:
                gradient.hold(now)

    def after_backward(
        self, *, scale: float | None, where: str | None, twice: bool, factors: tuple[float, ...]
    ) -> tuple[str | None, str | None]:
        """Note what was written, under that loss scale.

        ``twice``: a scaler takes back only a part of it. ``factors``: what the loss was multiplied by besides.

        Returns:
            The first parameter whose unscaled gradient scaled ones were added to, and the first whose gradient was
            added to after an update of the scaler; or None.
        """
        scaled = scale is not None
        onto_unscaled = after_update = None
        for gradient in self.gradients.values():
            now = gradient.parameter.grad
            if now is None or (now is gradient.held and private.version_of(now) == gradient.version):
                continue
            if gradient.stepped > gradient.stepped_before and gradient.is_zero():  # a hook stepped, and zeroed it
                gradient.reset()
                continue
            if self.keeps_raw:
                gradient.note_raw(now, scale=scale or 1.0, boost=self.boost)
            gradient.carried = gradient.carried or gradient.stepped
            if gradient.state is State.UNSCALED and scaled and not gradient.stepped:
                onto_unscaled = onto_unscaled or gradient.name
                gradient.modified = True
            if gradient.updated and not gradient.stepped:
                after_update = after_update or gradient.name
                gradient.modified = True
            gradient.modified = gradient.modified or twice
            if scaled or gradient.state is not State.SCALED:  # what is scaled in part must be unscaled
                gradient.state = State.SCALED if scaled else State.PLAIN
            gradient.scale = scale or gradient.scale
            gradient.scaled_at = where if scaled else gradient.scaled_at
            gradient.unscaled_by = None
            if not scaled:
                gradient.plain = gradient.plain or where or ""
            gradient.updated = False
            gradient.hold(now)
            gradient.factors, gradient.multiplied, gradient.undone_at = factors, (), None
            gradient.received, gradient.cleared_at = True, None
        return onto_unscaled, after_update
