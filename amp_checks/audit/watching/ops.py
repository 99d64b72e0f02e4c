"""The dispatch mode: each op below autocast, forward and backward, with its place; and what the ops of a run show."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.audit.places import Place, line, user_frame
from amp_checks.audit.watching import magnitudes, readable
from amp_checks.audit.watching.events import StepInAutocast, WeightsRounded
from amp_checks.audit.watching.op_facts import OpFacts, is_of_angle, tensors_of
from amp_checks.audit.watching.rounding import RoundingWatch
from amp_checks.audit.watching.state import RunState
from amp_checks.audit.watching.trace import Failure, Op
from amp_checks.audit.watching.uses import TensorUses
from amp_checks.emulation import hearing_of_replaced, replaces_op
from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import LOW, dtype_name

DETAILED_STEPS = 2
"""Iterations of which each op is kept; after them only what rules ask for."""


class OpMode(TorchDispatchMode):
    """Hands each op to `OpWatch`, unless the run is quiet."""

    def __init__(self, ops: OpWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops = ops

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if self._ops.state.quiet:
            out = func(*args, **kwargs) if kwargs else func(*args)
            if self._ops.state.steps_in_region:
                self._ops.stepped_with(func, args, out)
            return out
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            with private.no_function_modes():
                self._ops.failed(func, args, kwargs, error)
            raise
        with private.no_function_modes():
            if replaces_op():  # part of an op that is computed otherwise here than on the device: `heard` gets that op
                self._ops.passed()
            else:
                self._ops.saw(func, args, out)
        return out

    def heard(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """An op ran that was computed otherwise than on the device: what it took and made there."""
        if not self._ops.state.quiet:
            with self._ops.state.quiet_ops(), private.no_function_modes(), torch.no_grad():
                self._ops.saw(func, args, out)

    def __enter__(self) -> Any:
        self._hearing = hearing_of_replaced(self.heard)
        self._hearing.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hearing.__exit__(None, None, None)


class OpWatch:
    """Watches ops, one after the other, where that is ``enabled``."""

    def __init__(self, state: RunState, *, enabled: bool) -> None:
        self.state = state
        self.enabled = enabled
        self.uses = TensorUses(state)
        self.rounding = RoundingWatch(state)
        self.failure: Failure | None = None
        self.made: dict[int, Op] = {}
        self._facts: dict[Any, OpFacts] = {}
        self._forward_places: dict[int, tuple[str | None, Place | None]] = {}
        self._extremes: list[tuple[Op, Tensor, Tensor]] = []
        self._magnitudes: list[tuple[Op, Tensor, int]] = []

    def start_step(self) -> None:
        """An iteration begins."""
        self._forward_places.clear()
        self.made.clear()
        self.uses.start_step()

    def end_step(self) -> None:
        """An iteration ended: read the extremes that were left on the device."""
        self.uses.end_step()
        if not self._extremes:
            return
        values = torch.stack([value.float() for _, *pair in self._extremes for value in pair]).tolist()
        for place, (op, _, _) in enumerate(self._extremes):
            op.low, op.high = values[2 * place], values[2 * place + 1]
        self._extremes.clear()
        found = torch.stack([numbers for _, numbers, _ in self._magnitudes]).tolist() if self._magnitudes else ()
        for (op, _, count), numbers in zip(self._magnitudes, found, strict=True):
            op.magnitudes = magnitudes.read(numbers, dtype=op.outputs[0], count=count)
        self._magnitudes.clear()

    def saw(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """One op ran."""
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = OpFacts(func)
        if facts.view:
            return
        tensors = tensors_of(args)
        backward = self.state.backward_depth > 0
        # A tensor without storage has no address, and nothing that is looked for here.
        with contextlib.suppress(RuntimeError):
            self.uses.look(facts, tensors, args, out, backward=backward)
            if not backward:
                with self.state.quiet_ops(), torch.no_grad():
                    self.rounding.look(facts, tensors, out)
        self.state.trace.takes_angles |= not backward and is_of_angle(facts.base, out)
        if facts.base == "aten::copy_" and tensors[-1].dtype in LOW and self._has_stepped():
            name = self.uses.parameters.get(tensors[0].data_ptr()) if tensors[0].dtype is torch.float32 else None
            if name is not None:
                self.state.emit_once(WeightsRounded, tensors[-1].dtype, name)
        if self.state.step < DETAILED_STEPS:
            self._keep(facts, tensors, out, backward=backward)

    def _has_stepped(self) -> bool:
        return any(facts.stepped for facts in self.state.trace.parameters.values())

    def stepped_with(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """An op of an optimizer's step ran, inside a region: whether the region casts."""
        if func.name() == "aten::_to_copy" and out.dtype in LOW and args[0].dtype is torch.float32:
            self.state.emit_once(StepInAutocast, out.dtype)

    def passed(self) -> None:
        """A part of an op ran: its backward belongs to where it is."""
        if self.state.step < DETAILED_STEPS and not self.state.backward_depth and torch.is_grad_enabled():
            self._forward_places.setdefault(private.latest_node_number(), (self.state.module, user_frame()))

    def _keep(self, facts: OpFacts, tensors: list[Tensor], out: Any, *, backward: bool) -> None:
        outputs = self.outputs(out)
        if not outputs or facts.allocates:  # what lies in new memory is no value of the program
            return
        state = self.state
        function = state.functions[-1] if state.functions else None
        if backward:
            node = private.running_node()
            number = private.node_number(node) if node is not None else -1
            module, frame = self._forward_places.get(number, (None, None))
            custom = private.custom_function_of(node) if node is not None else None
            if custom is not None:
                function, frame = custom.__name__, user_frame() or frame
        else:
            module, frame = state.module, user_frame()
            if torch.is_grad_enabled():
                # An op that makes no node must not take the place of the one that made the last.
                self._forward_places.setdefault(private.latest_node_number(), (module, frame))
        first = outputs[0]
        op = Op(
            name=facts.name,
            step=state.step,
            backward=backward,
            inputs=tuple([tensor.dtype for tensor in tensors if tensor.is_floating_point()]),
            outputs=tuple([tensor.dtype for tensor in outputs]),
            module=module,
            frame=frame,
            function=function,
            elements=first.numel(),
            in_place=facts.changes,
            within=self._is_within(frame),
            region=None if backward else state.enabled_region,
        )
        if facts.cast and not replaces_op():
            made = self.made.get(tensors[0].data_ptr()) if tensors else None
            if made is not None and made.is_cast and made.inputs and not made.within and made.frame != frame:
                op.from_cast = made.inputs[0]
        if facts.product and function is not None:
            state.trace.function_products.setdefault(function, (set(), set()))[backward].add(first.dtype)
        with contextlib.suppress(RuntimeError):
            self.made[first.data_ptr()] = op
        if first.dtype in LOW and (values := readable.values(first)) is not None and values.numel():
            low, high = torch.aminmax(values)
            self._extremes.append((op, low, high))
            if op.step == 0:
                self._magnitudes.append((op, magnitudes.on_device(values), values.numel()))
        state.trace.ops.append(op)

    def outputs(self, out: Any) -> list[Tensor]:
        """What an op made that is of a floating dtype; the memory of all of it was another's."""
        made = [item for item in (out if isinstance(out, list | tuple) else (out,)) if isinstance(item, Tensor)]
        for tensor in made:
            with contextlib.suppress(RuntimeError):
                self.made.pop(tensor.data_ptr(), None)
        return [tensor for tensor in made if tensor.is_floating_point()]

    def _is_within(self, frame: Place | None) -> bool:
        last = self.state.trace.ops[-1] if self.state.trace.ops else None
        return last is not None and frame is not None and last.frame == frame and (last.within or not last.is_cast)

    def computed_in(self, loss: Any) -> torch.dtype | None:
        """The dtype a loss was computed in: its own, or that of what it was cast from at last; None of no tensor.

        What is no single number is no loss yet, but what a model puts out: its own.
        """
        if not isinstance(loss, Tensor):
            return None
        made = None
        with contextlib.suppress(RuntimeError):
            made = self.made.get(loss.data_ptr()) if loss.numel() == 1 else None
        return made.inputs[0] if made is not None and made.is_cast and made.inputs else loss.dtype

    def failed(self, func: Any, args: tuple[Any, ...], kwargs: Any, error: Exception) -> None:
        """An op raised."""
        self.failure = Failure(
            error=error,
            text="",
            step=self.state.step,
            op=func.name(),
            inputs=tuple(self._describe(one) for one in (*args, *(kwargs or {}).values()) if isinstance(one, Tensor)),
            where=line(user_frame()),
            module=self.state.module,
            function=self.state.function,
        )

    def _describe(self, tensor: Tensor) -> str:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        text = f"{dtype_name(tensor.dtype)} {shape}"
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            return text
        if address in self.uses.parameters:
            return f"{text}: parameter {self.uses.parameters[address]}"
        made = self.made.get(address)
        if made is not None:
            module = f" in {made.module}" if made.module else ""
            return f"{text}: made by {made.name}{module} at {line(made.frame)}"
        return f"{text}: given to the step"
