"""Watches a training run from outside: what `patches` tells it of scaler, regions, backward and optimizers, and ops.

A watch belongs to one run. It holds the state machine of the gradients and turns what happens into a `Trace`; it judges
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from amp_checks.audit.case import Training
from amp_checks.audit.runs.overflow import Rehearsal
from amp_checks.audit.runs.undo import Mend
from amp_checks.audit.watching import hand_scaling, scaling
from amp_checks.audit.watching.gradients import Book, Gradient, State
from amp_checks.audit.watching.ops import LOW, OpMode, OpWatch
from amp_checks.audit.watching.places import line, raised_at, tracked_modules, user_frame
from amp_checks.audit.watching.trace import Event, Failure, Kind, ParameterFacts, Trace
from amp_checks.core import DEVICE_TYPES
from amp_checks.torch_api import private


class Watch:
    """One run, watched.

    Args:
        ops: watch each op too. Without it only losses, gradients, steps and scales are noted: what a reference needs.
        overflow_at: iteration in which scaled losses are given infinite gradients, and all that backward leaves are
            made infinite: a rehearsal of a skipped step.
        skip: for each optimizer, how many of its first steps are to be undone, to follow a run that skipped them.
        scales: of that run, the loss scale after each update, to be followed too.
        follow: note also what backward gave of each gradient, whatever becomes of it until its step.
        mend: a fault that is undone as the program runs.
    """

    def __init__(
        self,
        *,
        ops: bool = True,
        overflow_at: int | None = None,
        skip: dict[int, int] | None = None,
        scales: Sequence[float] = (),
        follow: bool = False,
        mend: Mend | None = None,
    ) -> None:
        self.trace = Trace()
        self.ops = OpWatch(self)
        self.mend = mend or Mend()
        self.book = Book(follows=follow or mend is not None)
        self.step = -1
        self.backward_depth = 0
        self.nest_depth = 0
        self.just_skipped = False
        self.op_failed: tuple[Exception, str, tuple[str, ...], str | None, str | None] | None = None
        self.scalers: list[Any] = []
        self._watch_ops = ops
        self.rehearsal = Rehearsal(overflow_at)
        self._skip = skip or {}
        self._scales = scales
        self._regions: list[dict[str, Any]] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._taken: dict[int, int] = {}
        self._real: dict[int, int] = {}
        self._since_schedule: dict[int, list[int]] = {}
        self._stepped: list[tuple[Any, int]] = []
        self._stepping: Any = None
        self._stepped_really = False
        self._undo: list[Any] = []
        self._before: list[tuple[str, torch.Tensor]] = []
        self._losses: list[tuple[int, torch.Tensor, float]] = []
        self._twice = False
        self._auto_advance = False
        self._training: Training | None = None
        self.on_backward_start: Callable[[Any], None] = lambda _: None
        self.on_backward: Callable[[], None] = lambda: None

    @property
    def training(self) -> Training:
        """What is trained."""
        assert self._training is not None
        return self._training

    # The run.

    def know(self, training: Training, *, whole_loop: bool) -> None:
        """What is trained; called when it is built."""
        self._training = training
        self._auto_advance = whole_loop
        named = training.named_parameters()
        self.book.gradients = {
            key: found
            for key, found in self.book.gradients.items()
            if not any(found.parameter is parameter for parameter in named.values())
        }
        self.book.know(named)
        for name, parameter in named.items():
            self.trace.parameters[name] = ParameterFacts(dtype=parameter.dtype)
        self.step = 0
        self.refresh()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch ops inside."""
        assert self._training is not None
        with ExitStack() as stack:
            if self._watch_ops:
                stack.enter_context(tracked_modules(self._training.named_modules(), self.ops.modules))
                stack.enter_context(OpMode(self.ops))
            yield

    def end_step(self) -> None:
        """An iteration ended."""
        with self.quietly():
            self.ops.end_step()
            self.step += 1
            self.trace.steps = self.step
            self.just_skipped = False
            self.refresh()
            self.ops.start_step()

    def refresh(self) -> None:
        """Addresses change when weights are replaced or moved."""
        if not self._watch_ops:
            return
        self.ops.parameters = {}
        for gradient in self.book.gradients.values():
            if gradient.parameter.layout is torch.strided and gradient.parameter.numel():
                self.ops.parameters.setdefault(gradient.parameter.data_ptr(), gradient.name)

    def close(self) -> Trace:
        """The run is over: read what was left for the end."""
        trace = self.trace
        trace.left_on = tuple(name for name in DEVICE_TYPES if torch.is_autocast_enabled(name))
        with self.quietly():
            self.ops.end_step()
            trace.losses = [(step, value.double().item() / scale) for step, value, scale in self._losses]
            for op in trace.ops:
                op.where = line(op.frame)
            trace.function_products = {
                name: (frozenset(sides[False]), frozenset(sides[True]))
                for name, sides in self.ops.function_products.items()
            }
            trace.optimizers = [type(optimizer).__name__ for optimizer in self._optimizers]
            if self._training is not None:
                trace.read_state(self._training, self._optimizers)
        return trace

    def fail(self, error: BaseException) -> None:
        """The step raised."""
        if self.op_failed is not None and self.op_failed[0] is error:
            _, op, inputs, module, where = self.op_failed
        else:
            op, inputs, module, where = None, (), None, raised_at(error)
        self.trace.failure = Failure(
            error=error, step=self.step, op=op, inputs=inputs, where=where or raised_at(error), module=module
        )

    @contextmanager
    def quiet_ops(self) -> Iterator[None]:
        """No op inside is the user's."""
        before, self.ops.quiet = self.ops.quiet, True
        try:
            yield
        finally:
            self.ops.quiet = before

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """No op inside is the user's, and no function mode is asked about it."""
        with self.quiet_ops(), private.no_function_modes(), torch.no_grad():
            yield

    def tell(self, kind: Kind, **data: Any) -> dict[str, Any]:
        """Note an event at the user's line; returns its data, which may be added to."""
        module = self.ops.modules[-1] if self.ops.modules else None
        self.trace.events.append(Event(kind=kind, step=self.step, where=line(user_frame(3)), module=module, data=data))
        return data

    # Parameters.

    def read_parameter(self, name: str) -> None:
        facts = self.trace.parameters.get(name)
        if facts is not None and not facts.read and not self.backward_depth:
            facts.read = True
            self.trace.first_reads[name] = line(user_frame(3))

    # Regions.

    def innermost_region(self) -> dict[str, Any] | None:
        return self._regions[-1] if self._regions else None

    def entered(self, device: str, dtype: torch.dtype, enabled: bool, cache: bool) -> None:
        data = self.tell(
            Kind.REGION,
            device=device,
            dtype=dtype,
            enabled=enabled,
            cache=cache,
            depth=self.nest_depth,
            in_backward=self.backward_depth > 0,
            function=self.ops.function(backward=self.backward_depth > 0),
            ops=0,
            low_ops=0,
        )
        self._regions.append(data)
        self.nest_depth += 1

    def left(self) -> None:
        if self._regions:
            self._regions.pop()
        self.nest_depth -= 1
        if self.nest_depth <= 0:
            self.nest_depth = 0
            self.ops.leave_nest()

    def enabled_region(self) -> dict[str, Any] | None:
        """The innermost region, where it is enabled."""
        region = self.innermost_region()
        return region if region is not None and region["enabled"] else None

    # The scaler.

    def made_scaler(self, scaler: Any, *, asked: bool, device: str) -> None:
        self.scalers.append(scaler)
        self.tell(Kind.SCALER, asked=asked, enabled=scaler.is_enabled(), device=device)

    def scaled(self, losses: Any, outputs: Any, scale: float) -> None:
        with self.quietly():
            found = list(scaling.tensors(losses))
            already = next((one for loss in found if (one := scaling.scale_of(loss)) is not None), None)
            scaling.mark(outputs, scale * (already or 1.0))
            self._twice = self._twice or already is not None
            self.tell(Kind.SCALE, dtype=self.ops.computed_in(found[0]) if found else None, scale=scale, already=already)

    def unscaled(self, scaler: Any, optimizer: Any) -> None:
        found = self._gradients_of(optimizer)
        self.ops.replaced(found)
        for gradient in found:
            if gradient.parameter.grad is not None:
                gradient.state = State.UNSCALED
        data = self.tell(Kind.UNSCALE, optimizer=self.number(optimizer), plain_at=self._plain(found))
        data |= self.rehearsal.seen(found, private.unscaled_found_inf(scaler, optimizer))

    @staticmethod
    def _plain(found: list[Gradient]) -> str | None:
        """Where a loss was differentiated without its scale, of gradients that a scaler is to divide by it."""
        plain = [gradient for gradient in found if gradient.has_plain]
        for gradient in plain:
            gradient.misused = True
        return (plain[0].plain or "") if plain else None

    @contextmanager
    def scaler_steps(self, scaler: Any, optimizer: Any) -> Iterator[None]:
        number = self.number(optimizer)
        found = self._gradients_of(optimizer)
        self.ops.replaced(found)
        data = self.tell(
            Kind.SCALER_STEP,
            optimizer=number,
            skipped=False,
            enabled=scaler.is_enabled(),
            plain_at=self._plain(found) if scaler.is_enabled() else None,
            carried=next((gradient.name for gradient in found if gradient.carried), None),
        )
        self._stepping, self._stepped_really = optimizer, False
        try:
            with self.quiet_ops():
                yield
        finally:
            self._stepping = None
        if not scaler.is_enabled():
            return
        skipped = private.unscaled_found_inf(scaler, optimizer)
        data["skipped"] = skipped
        data |= self.rehearsal.seen(found, skipped)
        self._stepped.append((scaler, number))
        if skipped:
            self._skipped(number, found)
        self._after_step(found)

    def _skipped(self, number: int, found: list[Gradient]) -> None:
        self.just_skipped = True
        if number not in self._real:
            self.trace.first_real[number] = self.trace.first_real.get(number, 0) + 1
        self._since_schedule.setdefault(number, [0, 0])[1] += 1
        for gradient in found:
            if gradient.parameter.grad is not None and gradient.name in self.trace.parameters:
                self.trace.parameters[gradient.name].skipped += 1

    def scale_to_follow(self) -> float | None:
        """What the loss scale that was just updated has to be, or None."""
        update = len(self.trace.scales)
        return self._scales[update] if update < len(self._scales) else None

    def updated(self, scaler: Any) -> None:
        for gradient in self.book.gradients.values():
            if gradient.state in (State.SCALED, State.UNSCALED) and not gradient.stepped:
                gradient.updated = True
        self.tell(Kind.UPDATE, stepped=tuple(number for one, number in self._stepped if one is scaler))
        self.trace.scales.append(scaler.get_scale())
        self._stepped = [(one, number) for one, number in self._stepped if one is not scaler]
        self._advance()

    def _advance(self) -> None:
        if self._auto_advance:
            self.end_step()

    # Backward.

    @contextmanager
    def backward(
        self, roots: Any, *, accumulates: bool, create_graph: bool, inputs: tuple[Any, ...]
    ) -> Iterator[list[Any]]:
        """Around one run of the engine; the caller puts what ``grad`` returns into the list."""
        results: list[Any] = []
        if self.backward_depth:
            yield results
            return
        with self.quietly():
            scales = [scaling.scale_of(root) for root in roots]
            scaled = any(scale is not None for scale in scales)
            region = self.enabled_region()
            data: dict[str, Any] = {}
            hands = not accumulates and not create_graph and bool(self.book.of(inputs))
            if accumulates or hands:
                root = roots[0] if roots and isinstance(roots[0], torch.Tensor) else None
                data = self.tell(
                    Kind.BACKWARD,
                    scaled=scaled,
                    region=region is not None,
                    dtype=self.ops.computed_in(root) if root is not None else None,
                    factors=self.ops.factors_of(root),
                )
                for loss, scale in zip(roots, scales, strict=True):
                    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                        self._losses.append((self.step, loss.detach().clone(), scale or 1.0))
                self.on_backward_start(roots)
            if accumulates:
                self.ops.replaced(self.book.gradients.values())
                self.book.before_backward()
        self.backward_depth += 1
        try:
            yield results
        finally:
            self.backward_depth -= 1
        with self.quietly():
            scale = next((scale for scale in scales if scale is not None), None)
            if accumulates:
                self.on_backward()
                self._after_backward(data, scale)
                if len(set(scales)) > 1:  # which of them a gradient has is not known
                    self.book.forget_given()
            elif hands:
                self._hand(inputs, results, scale)
            elif scale is not None and create_graph:
                self.ops.inner = {tensor.data_ptr(): (tensor, scale) for tensor in scaling.tensors(results)}

    def _hand(self, inputs: tuple[Any, ...], results: list[Any], scale: float | None) -> None:
        """``autograd.grad`` gave gradients of parameters: without an optimizer, all that is known of their use."""
        for parameter, result in zip(inputs, results, strict=False):
            for gradient in self.book.of((parameter,)) if result is not None else ():
                gradient.rehearsed = self.rehearsal.at == self.step and scale is not None
                if gradient.rehearsed:
                    result.fill_(torch.inf)
                gradient.handed = (result, scale, self.trace.events[-1].where)
                if not self._optimizers:
                    value = result.detach().to(device="cpu", dtype=torch.float64, copy=True)
                    self.trace.gradients.setdefault(gradient.name, value / (scale or 1.0))

    def _after_backward(self, data: dict[str, Any], scale: float | None) -> None:
        scaled, twice, self._twice = scale is not None, self._twice, False
        written = self.book.after_backward(
            scale=scale,
            where=self.trace.events[-1].where,
            twice=twice,
            boost=self.mend.boost,
            factors=data["factors"],
        )
        data["touched"] = written.touched
        data["carried"], data["onto_unscaled"] = written.carried, written.onto_unscaled
        data["after_update"] = written.after_update
        if self.rehearsal.at == self.step and scaled:
            groups = [self._gradients_of(optimizer) for optimizer in self._optimizers]
            data["hidden_at"] = self.rehearsal.after_backward([*groups, list(self.book.gradients.values())])
        if self._watch_ops:
            self.ops.gradients, self.ops.derived = self.book.pointers(), {}

    # Optimizers.

    def number(self, optimizer: Any) -> int:
        """Which optimizer it is, in the order in which they were made."""
        for place, known in enumerate(self._optimizers):
            if known is optimizer:
                return place
        self._optimizers.append(optimizer)
        place = len(self._optimizers) - 1
        groups = getattr(optimizer, "param_groups", ())
        self.book.know(
            {
                f"optimizer[{place}].{index}": parameter
                for index, parameter in enumerate(p for group in groups for p in group["params"])
            }
        )
        return place

    def _gradients_of(self, optimizer: Any) -> list[Gradient]:
        self.number(optimizer)
        groups = getattr(optimizer, "param_groups", ())
        return self.book.of(parameter for group in groups for parameter in group["params"])

    def before_step(self, optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """An optimizer is about to step, in a scaler or not.

        Returns:
            None; or, for a step that is given a closure, the arguments with that closure watched: its backward makes
            the gradients of the step, so the step begins where its first call ends.
        """
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        if not callable(closure):
            self._begin_step(optimizer)
            return None
        self.ops.quiet = True
        watched = self._watched(closure, optimizer)
        if len(arguments) > 1:
            return (arguments[0], watched, *arguments[2:]), named
        return arguments, {**named, "closure": watched}

    def _watched(self, closure: Callable[[], Any], optimizer: Any) -> Callable[[], Any]:
        calls = 0

        def watched() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1 and self.nest_depth:  # the step has moved weights since the last call
                with self.quietly():
                    for gradient in self._gradients_of(optimizer):
                        self.ops.rewrote(gradient.name, None)
            self.ops.quiet = False
            try:
                value = closure()
            finally:
                self.ops.quiet = True
            if calls == 1:
                self._begin_step(optimizer)
            return value

        return watched

    def _begin_step(self, optimizer: Any) -> None:
        with self.quietly():
            number = self.number(optimizer)
            found = self._gradients_of(optimizer)
            direct = self._stepping is None
            states = {gradient.state for gradient in found if gradient.parameter.grad is not None}
            if (by_hand := hand_scaling.found(found)) is not None:
                self.tell(Kind.SCALED_BY_HAND, factor=by_hand[0], undone=by_hand[1])
            if direct:
                self._bypassed(found)
                self.tell(
                    Kind.OPTIMIZER_STEP,
                    optimizer=number,
                    scaled=State.SCALED in states,
                    unscaled=State.UNSCALED in states,
                    carried=next((gradient.name for gradient in found if gradient.carried), None),
                )
            infinite = getattr(optimizer, "found_inf", None)
            if infinite is not None and bool(infinite.item()):
                self._undo.append(None)
            else:
                self._stepped_really = True
                if self.mend.gradients:
                    self._put_right(optimizer, found)
                self._take(optimizer, number, found)
        self.ops.quiet = True

    def _bypassed(self, found: list[Gradient]) -> None:
        """An optimizer steps with gradients that are a scaler's."""
        for gradient in found:
            if gradient.state in (State.SCALED, State.UNSCALED) and not gradient.stepped:
                self.trace.bypassed.add(gradient.name)
                gradient.misused = gradient.misused or gradient.state is State.SCALED

    def _put_right(self, optimizer: Any, found: list[Gradient]) -> None:
        """Step with what backward gave instead of what a fault made of it."""
        scale = getattr(optimizer, "grad_scale", None)
        for gradient in found:
            now = gradient.parameter.grad
            if now is not None and gradient.misused and gradient.given is not None:
                now.copy_(gradient.given if scale is None else gradient.given * scale)

    def _take(self, optimizer: Any, number: int, found: list[Gradient]) -> None:
        taken = self._taken[number] = self._taken.get(number, 0) + 1
        if taken <= self._skip.get(number, 0):
            state = copy.deepcopy(optimizer.state_dict())
            self._undo.append((state, [(g.parameter, g.parameter.detach().clone()) for g in found]))
            return
        self._undo.append(None)
        if self.rehearsal.at is not None:
            self.trace.took_overflow |= self.rehearsal.overflowed([gradient.parameter.grad for gradient in found])
        if number not in self._real:
            self._keep_gradients(optimizer, found)
        self._real[number] = self._real.get(number, 0) + 1
        self._since_schedule.setdefault(number, [0, 0])[0] += 1
        self.just_skipped = False
        for gradient in found:
            facts = self.trace.parameters.get(gradient.name)
            if facts is None or gradient.parameter.grad is None:
                continue
            facts.stepped += 1
            if facts.dtype in LOW:
                self._before.append((gradient.name, gradient.parameter.detach().clone()))

    def _keep_gradients(self, optimizer: Any, found: list[Gradient]) -> None:
        scale = getattr(optimizer, "grad_scale", None)
        for gradient in found:
            value = gradient.parameter.grad
            if value is None:
                continue
            if gradient.misused:
                self.trace.misused.add(gradient.name)
            if gradient.given is not None:
                self.trace.given[gradient.name] = gradient.given.to(device="cpu", dtype=torch.float64, copy=True)
            value = value.detach().to(device="cpu", dtype=torch.float64, copy=True)
            value = value.to_dense() if value.layout is not torch.strided else value
            self.trace.gradients[gradient.name] = value / scale.double().item() if scale is not None else value

    def after_step(self, optimizer: Any) -> None:
        self.ops.quiet = self._stepping is not None
        with self.quietly():
            found = self._gradients_of(optimizer)
            undo = self._undo.pop() if self._undo else None
            if undo is not None:
                state, values = undo
                for parameter, value in values:
                    parameter.copy_(value)
                optimizer.load_state_dict(state)
            self._note_moved(found)
            if self.nest_depth:
                where = line(user_frame(3))
                for gradient in found:
                    self.ops.rewrote(gradient.name, where)
            if self._stepping is None:
                self._after_step(found)
                if not any(scaler.is_enabled() for scaler in self.scalers):
                    self._advance()

    def _note_moved(self, found: list[Gradient]) -> None:
        now = {gradient.name: gradient.parameter for gradient in found}
        for name, before in self._before:
            gradient = now[name].grad
            there = gradient != 0 if gradient is not None else torch.zeros((), dtype=torch.bool)
            count = int(there.sum())
            if count:
                moved = ((now[name] != before) & there).sum().item() / count
                self.trace.parameters[name].moved = moved
        self._before.clear()

    def _after_step(self, found: list[Gradient]) -> None:
        for gradient in found:
            if gradient.parameter.grad is not None:
                gradient.stepped = True
                gradient.updated = gradient.carried = False
                if gradient.state is State.SCALED:
                    gradient.state = State.UNSCALED

    def zeroed(self, parameters: list[torch.Tensor]) -> None:
        for gradient in self.book.of(parameters):
            gradient.reset()

    def scheduled(self, scheduler: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        real, skipped = self._since_schedule.pop(self.number(optimizer), [0, 0]) if optimizer is not None else [0, 0]
        self.tell(Kind.SCHEDULER_STEP, real=real, skipped=skipped)

    # Others.

    def applied(self, function: type, *, decorated: bool) -> None:
        region = self.enabled_region()
        self.tell(
            Kind.FUNCTION,
            function=function.__name__,
            region=region["dtype"] if region is not None else None,
            decorated=decorated,
        )

    def saved(self, *, optimizer: bool, scaler: bool) -> None:
        self.tell(Kind.SAVED, optimizer=optimizer, scaler=scaler)
