"""What known tensors are used for: parameters, their gradients, cast copies of weights, losses, state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from amp_checks.audit.places import Place, line, user_frame, user_function
from amp_checks.audit.watching import constants, manual_scaling
from amp_checks.audit.watching.events import (
    ConstantLost,
    GradientsRead,
    GradientsWritten,
    InnerGradientUsed,
    StaleWeightUsed,
    StateCarried,
    WeightsAveraged,
)
from amp_checks.audit.watching.gradients import Gradient, State
from amp_checks.audit.watching.op_facts import MOVES, OpFacts
from amp_checks.audit.watching.state import RunState
from amp_checks.torch_api.dtypes import LOW

_SCALING = {"aten::mul", "aten::div", "aten::_foreach_mul", "aten::_foreach_div"}
_SCALAR = "aten::scalar_tensor"
"""What a Python number becomes where an op takes it as a tensor (``where``)."""
_SMALL = 8
"""Elements of a counter that is not changed in place."""


def _undoes(facts: OpFacts, args: tuple[Any, ...], scale: float | None) -> bool:
    """Whether an op divides by that loss scale."""
    if facts.base.removesuffix("_") not in _SCALING or len(args) < 2 or scale is None:
        return False
    factor = args[1].item() if isinstance(args[1], Tensor) and args[1].numel() == 1 else args[1]
    if not isinstance(factor, int | float) or not factor:
        return False
    return math.isclose(factor if "div" in facts.base else 1 / factor, scale, rel_tol=1e-3)


def _is_move(op: str) -> bool:
    return op.partition(".")[0] in MOVES


@dataclasses.dataclass(frozen=True, slots=True)
class _Derived:
    """What is made of scaled gradients: kept, with the ops that made it and their lines, and with the loss scale.

    ``undone``: where it was divided by that.
    """

    tensor: Tensor
    makers: dict[tuple[str, Place | None], None]
    scale: float | None
    undone: Place | None = None


class TensorUses:
    """What ops do with tensors that are known by their address.

    Addresses belong to tensors that are kept alive, so that none can be given away and mistaken.

    Attributes:
        parameters, gradients: by address.
        buffers: names of 16-bit buffers, by the address of their memory, which a view has as well.
        copies: 16-bit copies of weights: name, the copy, and how often the weight had been written to.
        inner: what ``autograd.grad`` gave of a scaled loss, with its scale.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self.parameters: dict[int, str] = {}
        self.buffers: dict[int, str] = {}
        self.gradients: dict[int, Gradient] = {}
        self.copies: dict[int, tuple[str, Tensor, int]] = {}
        self.inner: dict[int, tuple[Tensor, float]] = {}
        self._rewritten: dict[str, tuple[int, str | None]] = {}
        self._meets_gradient: float | None = None
        self._meets_plain: Gradient | None = None
        self._plain_copies: dict[int, tuple[Tensor, Gradient]] = {}
        self._derived: dict[int, _Derived] = {}
        self._factors: dict[int, tuple[float, ...]] = {}
        self._carried: dict[int, tuple[Tensor, int]] = {}

    def start_step(self) -> None:
        """An iteration begins."""
        self._factors.clear()
        step = self._state.step
        self._carried = {address: held for address, held in self._carried.items() if held[1] >= step - 1}

    def end_step(self) -> None:
        """An iteration ended."""
        self.replaced(self.gradients.values())
        self._derived.clear()
        self._plain_copies.clear()

    def know_gradients(self) -> None:
        """Backward has made new gradients."""
        self.gradients, self._derived = self._state.book.pointers(), {}

    def leave_nest(self) -> None:
        """The outermost region was left: the copies of weights are gone."""
        self.copies.clear()
        self._rewritten.clear()

    def rewrote(self, name: str, where: str | None) -> None:
        """A parameter was written to while casts of it may be kept."""
        self._rewritten[name] = (self._rewritten.get(name, (0, None))[0] + 1, where)

    def factors_of(self, loss: Any) -> tuple[float, ...]:
        """The constants that a loss was multiplied by, last of all."""
        return self._factors.get(loss.data_ptr(), ()) if isinstance(loss, Tensor) else ()

    def look(self, facts: OpFacts, tensors: list[Tensor], args: tuple[Any, ...], out: Any, *, backward: bool) -> None:
        """One op ran.

        Raises:
            RuntimeError: one of its tensors has no storage, and so no address.
        """
        for tensor in tensors:
            self._look_at(facts, tensor, tensors, args, out, backward=backward)
        low = any(tensor.dtype in LOW for tensor in tensors)
        if low and not backward and facts.checks_constants:
            self._constants(facts, args, out)
        if low and not backward and facts.accumulates:
            self._accumulated(facts, tensors, out)
        if facts.name == _SCALAR and out.dtype in LOW and constants.overflowed(args[0], out.dtype):
            self._lost(_SCALAR, args[0], constants.rounded(args[0], out.dtype), out.dtype)
        if not backward:
            self._multiplied(facts, tensors, args, out)
            self._derive(facts, tensors, args, out)

    def _look_at(
        self, facts: OpFacts, tensor: Tensor, tensors: list[Tensor], args: tuple[Any, ...], out: Any, *, backward: bool
    ) -> None:
        address = tensor.data_ptr()
        if self.buffers and (name := self.buffers.get(tensor.untyped_storage().data_ptr())) is not None:
            used = self._state.trace.buffers_used
            used[name] = used[name] if name in used else line(user_frame())
        if address in self.parameters:
            self._parameter(facts, self.parameters[address], tensor, tensors, out)
        elif address in self.gradients and not backward:
            self._gradient(facts, self.gradients[address], tensor, tensors, args)
        elif address in self.copies and self._rewritten:
            self._copy(*self.copies[address])
        if self.inner and address in self.inner and not backward:
            self._inner_gradient(facts, self.inner[address][1], args, out)

    def _constants(self, facts: OpFacts, args: tuple[Any, ...], out: Any) -> None:
        if (lost := constants.lost(facts.base, args, out)) is not None:
            self._lost(facts.name, *lost)

    def _lost(self, op: str, constant: float, becomes: float, dtype: torch.dtype) -> None:
        self._state.emit_once(ConstantLost, op, constant, becomes, dtype, key=(op, constant))

    def _parameter(self, facts: OpFacts, name: str, tensor: Tensor, tensors: list[Tensor], out: Any) -> None:
        state = self._state
        # Weights that a skipped step has left alone may be copied as often as one likes.
        averages = facts.changes and tensors[0] is not tensor and facts.base != "aten::copy_"
        if averages and state.just_skipped and tensors[0].data_ptr() not in self.parameters:
            state.emit_once(WeightsAveraged, facts.name, name, key=facts.name)
        if facts.changes and tensors[0] is tensor:
            if state.nest_depth:
                self.rewrote(name, line(user_frame()))
            return
        known = state.trace.parameters.get(name)
        if known is not None and known.read_at is None and not state.backward_depth:
            known.read_at = line(user_frame()) or ""
        if facts.cast and isinstance(out, Tensor) and out.dtype in LOW and state.nest_depth:
            self.copies[out.data_ptr()] = (name, out, self._rewritten.get(name, (0, None))[0])

    def _copy(self, name: str, copy: Tensor, made_after: int) -> None:
        del copy
        rewrites, where = self._rewritten.get(name, (0, None))
        if rewrites > made_after:
            self._state.emit_once(StaleWeightUsed, name, where)

    def _gradient(
        self, facts: OpFacts, gradient: Gradient, tensor: Tensor, tensors: list[Tensor], args: tuple[Any, ...]
    ) -> None:
        written = facts.changes and any(item is tensor for item in tensors)
        if written and facts.zeroes:
            gradient.reset(line(user_frame()))
            return
        written = written and (facts.base.startswith("aten::_foreach") or tensors[0] is tensor)
        is_scaled = gradient.state is State.SCALED
        self._meets_gradient = gradient.scale if is_scaled else None
        if written and gradient.undone_at is not None and _undoes(facts, args, 1.0 / (gradient.scale or 1.0)):
            gradient.state, gradient.undone_at = State.SCALED, None
            return
        if written and is_scaled and not gradient.stepped and _undoes(facts, args, gradient.scale):
            gradient.undone(line(user_frame()))
            return
        if gradient.state is State.PLAIN:
            self._plain(facts, gradient, args)
        if written and gradient.stepped and gradient.is_zero():
            gradient.reset()
            return
        if written and is_scaled and not gradient.stepped:
            gradient.modified = True
        if written and (gradient.stepped or is_scaled):
            self._state.emit_once(GradientsWritten, facts.name, gradient.stepped, key=facts.name)
        elif facts.base in MOVES:
            return  # what is done with the copy decides
        elif not written and is_scaled and not _undoes(facts, args, gradient.scale):
            self._read(facts)

    def _plain(self, facts: OpFacts, gradient: Gradient, args: tuple[Any, ...]) -> None:
        self._meets_plain = gradient if gradient.factors else self._meets_plain
        if (by := manual_scaling.factor(facts.base, args)) is not None:
            gradient.multiplied = (*gradient.multiplied, (by, facts.changes))

    def _read(self, facts: OpFacts) -> None:
        place = user_frame()
        self._state.emit_once(GradientsRead, facts.name, user_function(), key=facts.name, place=place)

    def _derive(self, facts: OpFacts, tensors: list[Tensor], args: tuple[Any, ...], out: Any) -> None:
        """Note what is made of scaled gradients, by which ops: the program may put it in their place."""
        self._copied(facts, tensors, args, out)
        scale, self._meets_gradient = self._meets_gradient, None
        if not tensors or not (scale is not None or self._derived):
            return
        before = [found for tensor in tensors if (found := self._derived.get(tensor.untyped_storage().data_ptr()))]
        if facts.base not in MOVES:
            copy = next((found for found in before if all(_is_move(op) for op, _ in found.makers)), None)
            if copy is not None and not _undoes(facts, args, copy.scale):
                self._read(facts)
        made = tensors[0] if facts.changes else out
        whole = isinstance(made, Tensor) and made.numel() >= min(tensor.numel() for tensor in tensors)
        if whole and (scale is not None or before):
            makers = {maker: None for found in before for maker in found.makers} | {(facts.name, user_frame()): None}
            scale = scale if scale is not None else before[0].scale
            undone = next((found.undone for found in before if found.undone is not None), None)
            if undone is None and _undoes(facts, args, scale):
                undone = user_frame()
            self._derived[made.untyped_storage().data_ptr()] = _Derived(made, makers, scale, undone)

    def _copied(self, facts: OpFacts, tensors: list[Tensor], args: tuple[Any, ...], out: Any) -> None:
        """Follow copies of gradients of a loss with a factor: float32 masters may be stepped with them."""
        plain, self._meets_plain = self._meets_plain, None
        if plain is not None and (facts.cast or facts.base in MOVES):
            half = len(tensors) // 2
            made = tensors[:half] if facts.base == "aten::_foreach_copy_" else tensors[:1] if facts.changes else [out]
            self._plain_copies |= {
                one.untyped_storage().data_ptr(): (one, plain) for one in made if isinstance(one, Tensor)
            }
        if not self._plain_copies or (by := manual_scaling.factor(facts.base, args)) is None:
            return
        for tensor in tensors:
            _, source = self._plain_copies.get(tensor.untyped_storage().data_ptr(), (None, None))
            if source is not None:
                source.multiplied = (*source.multiplied, (by, True))

    def replaced(self, gradients: Iterable[Gradient]) -> None:
        """Report scaled gradients in whose place the program has put what it made of them."""
        known = {id(gradient): address for address, gradient in self.gradients.items()}
        for gradient in gradients:
            now = gradient.parameter.grad
            if now is None or gradient.state is not State.SCALED or gradient.stepped or not self._derived:
                continue
            if now.data_ptr() == known.get(id(gradient)):
                continue
            found = self._derived.get(now.untyped_storage().data_ptr())
            if found is not None and found.undone is not None:
                gradient.undone(line(found.undone))
                continue
            for op, place in found.makers if found is not None else ():
                if not _is_move(op):
                    gradient.modified = True
                    self._state.emit_once(GradientsWritten, op, False, key=op, place=place)

    def _inner_gradient(self, facts: OpFacts, scale: float, args: tuple[Any, ...], out: Any) -> None:
        if facts.cast:
            if isinstance(out, Tensor):
                self.inner[out.data_ptr()] = (out, scale)
        elif not _undoes(facts, args, scale):
            self._state.emit_once(InnerGradientUsed, facts.name, key=facts.name)

    def _multiplied(self, facts: OpFacts, tensors: list[Tensor], args: tuple[Any, ...], out: Any) -> None:
        """Of a single number, a loss maybe: which constants it was multiplied by."""
        if not isinstance(out, Tensor):
            return
        before = self._factors.get(tensors[0].data_ptr(), ()) if tensors else ()
        self._factors.pop(out.data_ptr(), None)  # its memory was another's
        if out.numel() != 1 or not out.is_floating_point():
            return
        by = manual_scaling.factor(facts.base, args)
        if by is not None or (facts.cast and before):
            self._factors[out.data_ptr()] = before if by is None else (*before, by)

    def _accumulated(self, facts: OpFacts, tensors: list[Tensor], out: Any) -> None:
        if not isinstance(out, Tensor) or out.dtype not in LOW or out.requires_grad or not tensors:
            return
        step = self._state.step
        if not facts.changes and out.numel() > _SMALL:
            return
        before = next((self._carried.get(t.data_ptr()) for t in tensors if t.dtype in LOW), None)
        if before is not None and before[1] == step - 1 and out.data_ptr() not in self.parameters:
            self._state.emit_once(StateCarried, facts.name, out.dtype, tuple(out.shape), key=facts.name)
        self._carried[out.data_ptr()] = (out, step)
