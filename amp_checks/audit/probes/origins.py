"""Where a non-finite value came from: the op that made it out of finite inputs, forward or backward.

A run is repeated up to the iteration in trouble, and there every output of every op is looked at. What is not finite
carries the op it came from wherever it goes, so that an infinity which a mask put there on purpose and which never
reaches the loss is not taken for the fault.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.audit.watching import scaling
from amp_checks.audit.watching.places import line, tracked_modules, user_frame
from amp_checks.torch_api import private

if TYPE_CHECKING:
    from amp_checks.audit.watching.trace import Trace
    from amp_checks.audit.watching.watch import Watch


@dataclasses.dataclass(slots=True, kw_only=True)
class Origin:
    """The op that made a non-finite value.

    Attributes:
        order: its place in the iteration.
        op, module, where, backward: which; in backward, the forward op it belongs to gives module and line.
        value: ``"inf"`` or ``"nan"``.
        inputs: dtypes of its tensors, and the greatest magnitude in them.
        deliberate: an infinite constant that the program wrote (a mask): no fault by itself.
        given: what came in that was not finite already, and no parameter or buffer: data; None where nothing did.
        nan_by: op and line that made a NaN of it, where that was another.
    """

    order: int
    op: str
    module: str | None
    where: str | None
    backward: bool
    value: str
    inputs: tuple[str, ...]
    magnitude: float
    least: float
    deliberate: bool = False
    given: str | None = None
    nan_by: tuple[str, str | None] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Where the non-finite values of one iteration came from; None where there are none of them.

    ``gradient`` is of the gradient that came first, ``parameter`` names whose it is; ``buffers`` by path.
    """

    step: int
    loss: Origin | None
    gradient: Origin | None
    parameter: str | None
    buffers: dict[str, Origin]

    def first(self) -> Origin | None:
        """The one to look at first."""
        return self.loss or self.gradient or next(iter(self.buffers.values()), None)


def first_trouble(trace: Trace) -> int | None:
    """The first iteration whose loss is not finite, else whose gradients overflowed, else 0 where the state is bad."""
    from amp_checks.audit.watching.trace import Kind

    bad = [step for step, loss in trace.losses if not math.isfinite(loss)]
    if bad:
        return bad[0]
    skipped = next((event.step for event in trace.of(Kind.SCALER_STEP) if event.data["skipped"]), None)
    if skipped is not None:
        return skipped
    poisoned = any(not facts.finite for facts in trace.parameters.values()) or any(
        not finite for _, finite in trace.buffers.values()
    )
    gradients = any(not bool(value.isfinite().all()) for value in trace.gradients.values())
    return 0 if gradients or poisoned else None


class OriginMode(TorchDispatchMode):
    """Looks at every output of every op of one iteration."""

    def __init__(self, watch: Watch, step: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._step = step
        self._origins: dict[int, tuple[Origin, Tensor]] = {}
        self._places: dict[int, tuple[str | None, Any]] = {}
        self._modules: list[str] = []
        self._tracking: Any = None
        self._order = 0
        self._loss: Origin | None = None
        self._gradient: tuple[Origin, str] | None = None
        self._buffers: dict[str, Origin] = {}
        watch.on_backward = self._backward_ended
        watch.on_backward_start = self._backward_starts

    def __enter__(self) -> Self:
        training = self._watch.training
        self._tracking = tracked_modules(training.named_modules(), self._modules)
        self._tracking.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._tracking.__exit__(*exception)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        watch = self._watch
        if watch.step != self._step or watch.ops.quiet:
            return func(*args, **kwargs)
        changes = private.is_mutating(func)
        before = [value.clone() for value in _tensors(args)[:1]] if changes else []
        out = func(*args, **kwargs)
        with private.no_function_modes():
            self._look(func, args, kwargs, out, before)
        return out

    def result(self) -> Origins:
        """What was found."""
        for name, buffer in self._watch.training.named_buffers().items():
            found = self._origin(buffer)
            if found is not None:
                self._buffers[name] = found
        return Origins(
            step=self._step,
            loss=self._loss,
            gradient=self._gradient[0] if self._gradient else None,
            parameter=self._gradient[1] if self._gradient else None,
            buffers=self._buffers,
        )

    def _look(self, func: Any, args: Any, kwargs: Any, out: Any, before: list[Tensor]) -> None:
        self._order += 1
        backward = self._watch.backward_depth > 0
        if not backward and torch.is_grad_enabled():
            module = self._modules[-1] if self._modules else None
            self._places.setdefault(private.latest_node_number(), (module, user_frame(3)))
        inputs = [value for value in _tensors((args, tuple(kwargs.values()))) if value.is_floating_point()]
        sources = before + inputs[1:] if before else inputs
        outputs = [value for value in _tensors((out,)) if value.is_floating_point()]
        if private.is_mutating(func):
            outputs += inputs[:1]
        elif "batch_norm" in func.name():
            outputs += inputs[1:]  # running statistics, which its schema does not own up to
        for tensor in outputs:
            if tensor.numel() and not bool(tensor.isfinite().all()):
                key = _key(tensor)
                if key is not None:
                    self._origins[key] = (self._whence(func, args, kwargs, tensor, sources, inputs, backward), tensor)
            else:
                self._origins.pop(_key(tensor) or 0, None)

    def _whence(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        out: Tensor,
        sources: list[Tensor],
        inputs: list[Tensor],
        backward: bool,
    ) -> Origin:
        has_nan = bool(out.isnan().any())
        bad = [value for value in sources if value.numel() and not bool(value.isfinite().all())]
        constants = [value for value in _numbers((*args, *kwargs.values())) if not math.isfinite(value)]
        if not bad and not constants and (inputs or _is_op_on_numbers(args)):
            return self._born(func, sources, has_nan, backward)
        known = next((found for value in inputs if (found := self._origin(value)) is not None), None)
        if known is None:
            known = self._born(func, sources, has_nan, backward)
            known.given = self._given(bad)
            known.deliberate = not bad or (known.given is not None and known.value == "inf")
            return known
        if has_nan and not any(bool(value.isnan().any()) for value in bad):
            if known.deliberate:
                return self._born(func, sources, has_nan, backward)
            if known.nan_by is None:
                _, place = self._place(backward)
                known.nan_by = (func.name(), place)
        return known

    def _given(self, bad: list[Tensor]) -> str | None:
        """The first of these that is data: what the step was called with, or what was made where no op is seen."""
        training = self._watch.training
        own = {_key(value) for value in (*training.named_parameters().values(), *training.named_buffers().values())}
        found = next((value for value in bad if _key(value) not in own), None)
        if found is None:
            return None
        batch = training.batches[self._step] if self._step < len(training.batches) else ()
        in_batch = _key(found) in {_key(value) for value in scaling.tensors(batch)}
        count = int((~found.isfinite()).sum())
        shape = "x".join(map(str, found.shape)) or "scalar"
        value = "NaN" if bool(found.isnan().any()) else "infinite"
        name = f"batch {self._step}" if in_batch else "a tensor made outside of the step"
        return f"{name}, {str(found.dtype).removeprefix('torch.')} {shape}, of which {count} elements are {value}"

    def _born(self, func: Any, sources: list[Tensor], has_nan: bool, backward: bool) -> Origin:
        module, place = self._place(backward)
        finite = [value.detach().double().abs() for value in sources if value.numel() and value.dim() >= 0]
        finite = [value[value.isfinite()] for value in finite]
        finite = [value for value in finite if value.numel()]
        return Origin(
            order=self._order,
            op=func.name(),
            module=module,
            where=place,
            backward=backward,
            value="nan" if has_nan else "inf",
            inputs=tuple(str(value.dtype).removeprefix("torch.") for value in sources),
            magnitude=max((value.max().item() for value in finite), default=math.nan),
            least=min((value.min().item() for value in finite), default=math.nan),
        )

    def _place(self, backward: bool) -> tuple[str | None, str | None]:
        if backward:
            node = private.running_node()
            number = private.node_number(node) if node is not None else -1
            module, frame = self._places.get(number, (None, None))
            if frame is None or private.custom_function_of(node) is not None:
                frame = user_frame(5) or frame
            return module, line(frame)
        return (self._modules[-1] if self._modules else None), line(user_frame(5))

    def _origin(self, tensor: Tensor) -> Origin | None:
        found = self._origins.get(_key(tensor) or 0)
        return found[0] if found is not None else None

    def _backward_starts(self, roots: Any) -> None:
        if self._watch.step == self._step and self._loss is None:
            found = (self._origin(root) for root in roots if isinstance(root, Tensor))
            self._loss = next((origin for origin in found if origin is not None), None)

    def _backward_ended(self) -> None:
        if self._watch.step != self._step or self._gradient is not None:
            return
        found = [
            (origin, gradient.name)
            for gradient in self._watch.book.gradients.values()
            if gradient.parameter.grad is not None and (origin := self._origin(gradient.parameter.grad)) is not None
        ]
        if found:
            self._gradient = min(found, key=lambda pair: pair[0].order)


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _numbers(values: Any) -> list[float]:
    return [value for value in values if isinstance(value, float)]


def _is_op_on_numbers(args: Any) -> bool:
    return bool(args) and not any(isinstance(value, list | tuple) for value in args)


def _key(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None
