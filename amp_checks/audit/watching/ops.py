"""The dispatch mode: each op below autocast, forward and backward, with its place, and what it tells."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.audit.watching import constants, hand_scaling, magnitudes
from amp_checks.audit.watching.gradients import Gradient, State
from amp_checks.audit.watching.places import Place, line, user_frame
from amp_checks.audit.watching.trace import Event, Kind, Op
from amp_checks.emulation import replaces_op
from amp_checks.torch_api import private

if TYPE_CHECKING:
    from amp_checks.audit.watching.watch import Watch

LOW = (torch.float16, torch.bfloat16)
DETAILED_STEPS = 2
"""Iterations of which each op is kept; after them only what rules ask for."""

_ZEROING = {"aten::zero_", "aten::_foreach_zero_", "aten::fill_.Scalar"}
_ACCUMULATING = {"aten::add", "aten::add_", "aten::sub_", "aten::lerp_", "aten::index_add_", "aten::scatter_add_"}
_PRODUCTS = {
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul", "einsum", "addmv", "mv", "dot")
}
_SCALING = {"aten::mul", "aten::div", "aten::_foreach_mul", "aten::_foreach_div"}
MOVES = frozenset(
    f"aten::{name}"
    for name in (
        "cat", "stack", "clone", "copy_", "index", "index_select", "embedding", "gather", "repeat", "flip", "view",
        "_unsafe_view", "reshape",
    )
)  # fmt: skip
"""Ops that change no value: they hand on what another op made."""
_OF_ANGLES = {f"aten::{name}" for name in ("sin", "cos", "tan", "polar", "sin_", "cos_")}
_SCALAR = "aten::scalar_tensor"
"""What a Python number becomes where an op takes it as a tensor (``where``)."""
_SMALL = 8
"""Elements of a counter that is not changed in place."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    name: str
    base: str
    view: bool
    changes: bool
    cast: bool
    checks_constants: bool
    accumulates: bool
    product: bool
    zeroes: bool


def _facts(func: Any) -> _Facts:
    name = func.name()
    base = name.partition(".")[0]
    return _Facts(
        name=name,
        base=base,
        view=private.is_aliasing(func),
        changes=private.is_mutating(func),
        cast=name == "aten::_to_copy",
        checks_constants=base in constants.CHECKED,
        accumulates=base in _ACCUMULATING,
        product=base in _PRODUCTS,
        zeroes=name in _ZEROING,
    )


def is_of_angle(base: str, out: Any) -> bool:
    """Whether an op takes angles: what it makes forgets their size, and that their rounding error is one of turns."""
    return base in _OF_ANGLES or (base == "aten::exp" and isinstance(out, Tensor) and out.is_complex())


def _undoes(facts: _Facts, args: tuple[Any, ...], scale: float | None) -> bool:
    """Whether an op divides by that loss scale."""
    if facts.base.removesuffix("_") not in _SCALING or len(args) < 2 or scale is None:
        return False
    factor = args[1].item() if isinstance(args[1], Tensor) and args[1].numel() == 1 else args[1]
    if not isinstance(factor, int | float) or not factor:
        return False
    return math.isclose(factor if "div" in facts.base else 1 / factor, scale, rel_tol=1e-3)


@dataclasses.dataclass(frozen=True, slots=True)
class _Derived:
    """What is made of scaled gradients: kept, with the ops that made it and their lines, and with the loss scale."""

    tensor: Tensor
    makers: dict[tuple[str, Place | None], None]
    scale: float | None


def _is_move(op: str) -> bool:
    return op.partition(".")[0] in MOVES


class OpMode(TorchDispatchMode):
    """Hands each op to `OpWatch`, unless the watch wants quiet."""

    def __init__(self, ops: OpWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops = ops

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        ops = self._ops
        if ops.quiet:
            return func(*args, **kwargs) if kwargs else func(*args)
        overflowed = ops.overflowed(args)
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            with private.no_function_modes():
                ops.failed(func, args, kwargs, error)
            raise
        with private.no_function_modes():
            ops.saw(func, args, out)
            if overflowed:
                ops.met_overflow(func, args, out)
        return out


class OpWatch:
    """What ops tell, one after the other.

    ``known`` holds, by address, what an argument may be: a parameter, its gradient, a cast copy of one. Addresses in it
    belong to tensors that are kept alive, so that none can be given away and mistaken.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.quiet = False
        self.modules: list[str] = []
        self.functions: list[str] = []
        self.made: dict[int, Op | str] = {}
        self.parameters: dict[int, str] = {}
        self.gradients: dict[int, Gradient] = {}
        self.copies: dict[int, tuple[str, Tensor, int]] = {}
        self.rewritten: dict[str, tuple[int, str | None]] = {}
        self._meets_gradient: float | None = None
        self.derived: dict[int, _Derived] = {}
        self.inner: dict[int, tuple[Tensor, float]] = {}
        self._factors: dict[int, tuple[float, ...]] = {}
        self._carried: dict[int, tuple[Tensor, int]] = {}
        self._facts: dict[Any, _Facts] = {}
        self._forward_places: dict[int, tuple[str | None, Place | None]] = {}
        self._extremes: list[tuple[Op, Tensor, Tensor]] = []
        self._magnitudes: list[tuple[Op, Tensor]] = []
        self._told: set[tuple[Any, ...]] = set()
        self.function_products: dict[str, dict[bool, set[torch.dtype]]] = {}

    def start_step(self) -> None:
        """An iteration begins."""
        self._forward_places.clear()
        self.made.clear()
        self._factors.clear()
        step = self._watch.step
        self._carried = {address: held for address, held in self._carried.items() if held[1] >= step - 1}

    def end_step(self) -> None:
        """An iteration ended: read the extremes that were left on the device."""
        self.replaced(self.gradients.values())
        self.derived.clear()
        if not self._extremes:
            return
        values = torch.stack([value.float() for _, *pair in self._extremes for value in pair]).tolist()
        for place, (op, _, _) in enumerate(self._extremes):
            op.low, op.high = values[2 * place], values[2 * place + 1]
        self._extremes.clear()
        found = torch.stack([numbers for _, numbers in self._magnitudes]).tolist() if self._magnitudes else ()
        for (op, _), numbers in zip(self._magnitudes, found, strict=True):
            op.magnitudes = magnitudes.read(numbers, dtype=op.outputs[0], count=op.elements)
        self._magnitudes.clear()

    def saw(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """One op ran."""
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = _facts(func)
        if facts.view:
            return
        tensors = [value for value in args if isinstance(value, Tensor)]
        for value in args:
            if type(value) is list or type(value) is tuple:
                tensors += [item for item in value if isinstance(item, Tensor)]
        watch = self._watch
        backward = watch.backward_depth > 0
        # A tensor without storage has no address, and nothing that is looked for here.
        with contextlib.suppress(RuntimeError):
            self._look(facts, tensors, args, out, backward=backward)
            if not backward:
                self._multiplied(facts, tensors, args, out)
                self._derive(facts, tensors, args, out)
        watch.trace.takes_angles |= not backward and is_of_angle(facts.base, out)
        if watch.step < DETAILED_STEPS:
            self._keep(facts, tensors, out, backward=backward)

    def overflowed(self, args: tuple[Any, ...]) -> bool:
        """Whether an op meets an overflow that is rehearsed."""
        if self._watch.rehearsal.at != self._watch.step:
            return False
        with private.no_function_modes():
            return self._watch.rehearsal.overflowed(args)

    def met_overflow(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """One op met such an overflow."""
        self._watch.rehearsal.note(args[:1] if self._facts[func].changes else (out,))

    def _look(self, facts: _Facts, tensors: list[Tensor], args: tuple[Any, ...], out: Any, *, backward: bool) -> None:
        parameters, gradients, copies, inner = self.parameters, self.gradients, self.copies, self.inner
        low = False
        for tensor in tensors:
            address = tensor.data_ptr()
            low = low or tensor.dtype in LOW
            if address in parameters:
                self._parameter(facts, parameters[address], tensor, tensors, out)
            elif address in gradients and not backward:
                self._gradient(facts, gradients[address], tensor, tensors, args)
            elif address in copies and self.rewritten:
                self._copy(copies[address][0], copies[address][2])
            if inner and address in inner and not backward:
                self._inner_gradient(facts, inner[address], args, out)
        if low and not backward:
            if facts.checks_constants:
                self._constants(facts, args, out)
            if facts.accumulates:
                self._accumulated(facts, tensors, out)
        if facts.name == _SCALAR and out.dtype in LOW and constants.overflowed(args[0], out.dtype):
            becomes = constants.rounded(args[0], out.dtype)
            self.tell(Kind.LOST_CONSTANT, once=True, op=_SCALAR, constant=args[0], becomes=becomes, dtype=out.dtype)

    def _keep(self, facts: _Facts, tensors: list[Tensor], out: Any, *, backward: bool) -> None:
        outputs = self._outputs(out)
        if not outputs:
            return
        function = self.functions[-1] if self.functions else None
        if backward:
            node = private.running_node()
            number = private.node_number(node) if node is not None else -1
            module, frame = self._forward_places.get(number, (None, None))
            custom = private.custom_function_of(node) if node is not None else None
            if custom is not None:
                function = custom.__name__
                frame = user_frame(4) or frame
        else:
            module = self.modules[-1] if self.modules else None
            frame = user_frame(4)
            if torch.is_grad_enabled():
                # An op that makes no node must not take the place of the one that made the last.
                self._forward_places.setdefault(private.latest_node_number(), (module, frame))
        first = outputs[0]
        op = Op(
            name=facts.name,
            step=self._watch.step,
            backward=backward,
            inputs=tuple([tensor.dtype for tensor in tensors if tensor.is_floating_point()]),
            outputs=tuple([tensor.dtype for tensor in outputs]),
            module=module,
            frame=frame,
            function=function,
            elements=first.numel(),
            in_place=facts.changes,
            within=self._is_within(frame),
        )
        if facts.cast and not replaces_op():
            made = self.made.get(tensors[0].data_ptr()) if tensors else None
            if isinstance(made, Op) and made.is_cast and made.inputs and not made.within and made.frame != frame:
                op.from_cast = made.inputs[0]
        if facts.product and function is not None:
            sides = self.function_products.setdefault(function, {False: set(), True: set()})
            sides[backward].add(first.dtype)
        with contextlib.suppress(RuntimeError):
            self.made[first.data_ptr()] = op
        region = self._watch.innermost_region()
        if region is not None and not backward:
            region["ops"] += 1
            region["low_ops"] += first.dtype in LOW
            op.region = region["dtype"] if region["enabled"] else None
        if first.dtype in LOW and op.elements:
            self._measure(op, first)
        self._watch.trace.ops.append(op)

    def _outputs(self, out: Any) -> list[Tensor]:
        """What an op made that is of a floating dtype; the memory of all of it was another's."""
        made = [item for item in (out if isinstance(out, list | tuple) else (out,)) if isinstance(item, Tensor)]
        for tensor in made:
            with contextlib.suppress(RuntimeError):
                self.made.pop(tensor.data_ptr(), None)
        return [tensor for tensor in made if tensor.is_floating_point()]

    def _is_within(self, frame: Place | None) -> bool:
        last = self._watch.trace.ops[-1] if self._watch.trace.ops else None
        return last is not None and frame is not None and last.frame == frame and (last.within or not last.is_cast)

    def _measure(self, op: Op, first: Tensor) -> None:
        low, high = torch.aminmax(first)
        self._extremes.append((op, low, high))
        if op.step == 0:
            self._magnitudes.append((op, magnitudes.on_device(first)))

    def _multiplied(self, facts: _Facts, tensors: list[Tensor], args: tuple[Any, ...], out: Any) -> None:
        """Of a single number, a loss maybe: which constants it was multiplied by."""
        if not isinstance(out, Tensor):
            return
        if out.numel() != 1 or not out.is_floating_point():
            self._factors.pop(out.data_ptr(), None)  # its memory was another's
            return
        before = self._factors.get(tensors[0].data_ptr(), ()) if tensors else ()
        by = hand_scaling.factor(facts.base, args)
        if by is not None:
            self._factors[out.data_ptr()] = (*before, by)
        elif facts.cast and before:
            self._factors[out.data_ptr()] = before
        else:
            self._factors.pop(out.data_ptr(), None)

    def function(self, *, backward: bool) -> str | None:
        """The custom autograd function whose forward or backward runs."""
        if not backward:
            return self.functions[-1] if self.functions else None
        node = private.running_node()
        custom = private.custom_function_of(node) if node is not None else None
        return custom.__name__ if custom is not None else None

    def factors_of(self, loss: Tensor | None) -> tuple[float, ...]:
        """The constants that a loss was multiplied by, last of all."""
        return self._factors.get(loss.data_ptr(), ()) if loss is not None else ()

    def computed_in(self, loss: Tensor) -> torch.dtype:
        """The dtype a loss was computed in: its own, or that of what it was cast from at last.

        What is no single number is no loss yet, but what a model puts out: its own.
        """
        if loss.numel() != 1:
            return loss.dtype
        try:
            made = self.made.get(loss.data_ptr())
        except RuntimeError:
            made = None
        return made.inputs[0] if isinstance(made, Op) and made.is_cast and made.inputs else loss.dtype

    def failed(self, func: Any, args: tuple[Any, ...], kwargs: Any, error: Exception) -> None:
        """An op raised."""
        self._watch.op_failed = (
            error,
            func.name(),
            tuple(self._describe(value) for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)),
            self.modules[-1] if self.modules else None,
            line(user_frame(3)),
        )

    def _describe(self, tensor: Tensor) -> str:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        text = f"{str(tensor.dtype).removeprefix('torch.')} {shape}"
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            return text
        if address in self.parameters:
            return f"{text}: parameter {self.parameters[address]}"
        made = self.made.get(address)
        if isinstance(made, Op):
            module = f" in {made.module}" if made.module else ""
            return f"{text}: made by {made.name}{module} at {line(made.frame)}"
        return f"{text}: given to the step"

    # What known tensors are used for.

    def _parameter(self, facts: _Facts, name: str, tensor: Tensor, tensors: list[Tensor], out: Any) -> None:
        watch = self._watch
        # Weights that a skipped step has left alone may be copied as often as one likes.
        if facts.changes and tensors[0] is not tensor and watch.just_skipped and facts.base != "aten::copy_":
            destination = tensors[0]
            if destination.data_ptr() not in self.parameters:
                self.tell(Kind.AVERAGED, once=True, op=facts.name, parameter=name)
        if facts.changes and tensors[0] is tensor:
            if watch.nest_depth:
                self.rewrote(name, line(user_frame(5)))
            return
        watch.read_parameter(name)
        if facts.cast and isinstance(out, Tensor) and out.dtype in LOW and watch.nest_depth:
            self.copies[out.data_ptr()] = (name, out, self.rewritten.get(name, (0, None))[0])

    def _gradient(
        self, facts: _Facts, gradient: Gradient, tensor: Tensor, tensors: list[Tensor], args: tuple[Any, ...]
    ) -> None:
        if facts.changes and any(item is tensor for item in tensors):
            if facts.zeroes:
                gradient.reset()
                return
            written = facts.base.startswith("aten::_foreach") or tensors[0] is tensor
        else:
            written = False
        self._meets_gradient = gradient.scale if gradient.state is State.SCALED else None
        if gradient.state is State.PLAIN and (by := hand_scaling.factor(facts.base, args)) is not None:
            gradient.multiplied = (*gradient.multiplied, (by, facts.changes))
        if written and gradient.stepped and gradient.is_zero():
            gradient.reset()
            return
        if written and gradient.state is State.SCALED and not gradient.stepped:
            gradient.misused = True
        if written and (gradient.stepped or gradient.state is State.SCALED):
            self.tell(Kind.GRADIENT_WRITTEN, once=True, op=facts.name, late=gradient.stepped)
        elif facts.base in MOVES:
            return  # what is done with the copy tells
        elif not written and gradient.state is State.SCALED and not _undoes(facts, args, gradient.scale):
            self.tell(Kind.GRADIENT_READ, once=True, op=facts.name)

    def _derive(self, facts: _Facts, tensors: list[Tensor], args: tuple[Any, ...], out: Any) -> None:
        """Note what is made of scaled gradients, by which ops: the program may put it in their place."""
        scale, self._meets_gradient = self._meets_gradient, None
        if not tensors or not (scale is not None or self.derived):
            return
        before = [found for tensor in tensors if (found := self.derived.get(tensor.untyped_storage().data_ptr()))]
        if facts.base not in MOVES:
            copy = next((found for found in before if all(_is_move(op) for op, _ in found.makers)), None)
            if copy is not None and not _undoes(facts, args, copy.scale):
                self.tell(Kind.GRADIENT_READ, once=True, op=facts.name)
        made = tensors[0] if facts.changes else out
        whole = isinstance(made, Tensor) and made.numel() >= min(tensor.numel() for tensor in tensors)
        if whole and (scale is not None or before):
            makers = {maker: None for found in before for maker in found.makers} | {(facts.name, user_frame(5)): None}
            scale = scale if scale is not None else before[0].scale
            self.derived[made.untyped_storage().data_ptr()] = _Derived(made, makers, scale)

    def replaced(self, gradients: Iterable[Gradient]) -> None:
        """Tell of scaled gradients in whose place the program has put what it made of them."""
        known = {id(gradient): address for address, gradient in self.gradients.items()}
        for gradient in gradients:
            now = gradient.parameter.grad
            if now is None or gradient.state is not State.SCALED or gradient.stepped or not self.derived:
                continue
            if now.data_ptr() == known.get(id(gradient)):
                continue
            found = self.derived.get(now.untyped_storage().data_ptr())
            for op, frame in found.makers if found is not None else ():
                if not _is_move(op):
                    gradient.misused = True
                    self.tell(Kind.GRADIENT_WRITTEN, once=True, frame=frame, op=op, late=False)

    def rewrote(self, name: str, where: str | None) -> None:
        """A parameter was written to while casts of it may be kept."""
        self.rewritten[name] = (self.rewritten.get(name, (0, None))[0] + 1, where)

    def _copy(self, name: str, made_after: int) -> None:
        rewrites, where = self.rewritten.get(name, (0, None))
        if rewrites > made_after:
            self.tell(Kind.STALE_WEIGHT, once=True, parameter=name, written=where)

    def _inner_gradient(self, facts: _Facts, held: tuple[Tensor, float], args: tuple[Any, ...], out: Any) -> None:
        _, scale = held
        if facts.cast:
            if isinstance(out, Tensor):
                self.inner[out.data_ptr()] = (out, scale)
            return
        if _undoes(facts, args, scale):
            return
        self.tell(Kind.INNER_GRADIENT, once=True, op=facts.name)

    def _constants(self, facts: _Facts, args: tuple[Any, ...], out: Any) -> None:
        found = constants.lost(facts.base, args, out)
        if found is not None:
            self.tell(Kind.LOST_CONSTANT, once=True, op=facts.name, **found)

    def _accumulated(self, facts: _Facts, tensors: list[Tensor], out: Any) -> None:
        if not isinstance(out, Tensor) or out.dtype not in LOW or out.requires_grad or not tensors:
            return
        step = self._watch.step
        if not facts.changes and out.numel() > _SMALL:
            return
        before = next((self._carried.get(t.data_ptr()) for t in tensors if t.dtype in LOW), None)
        if before is not None and before[1] == step - 1 and out.data_ptr() not in self.parameters:
            self.tell(Kind.CARRIED_STATE, once=True, op=facts.name, dtype=out.dtype, shape=tuple(out.shape))
        self._carried[out.data_ptr()] = (out, step)

    def tell(self, kind: Kind, *, once: bool = False, frame: Place | None = None, **data: Any) -> None:
        """Note an event at that line, or the user's; ``once``: only the first of its kind there."""
        frame = frame or user_frame(5)
        if once:
            key = (kind, frame, data.get("constant"), data.get("op"))
            if key in self._told:
                return
            self._told.add(key)
        self._watch.trace.events.append(
            Event(
                kind=kind,
                step=self._watch.step,
                where=line(frame),
                module=self.modules[-1] if self.modules else None,
                data=data,
            )
        )

    def leave_nest(self) -> None:
        """The outermost region was left: the copies of weights are gone."""
        self.copies.clear()
        self.rewritten.clear()
