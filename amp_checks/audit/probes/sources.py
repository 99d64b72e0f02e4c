"""Where a non-finite value came from: the op that made it out of finite inputs, forward or backward.

A run is repeated up to the iteration in trouble, and there every output of every op is looked at. What is not finite
carries the op it came from wherever it goes, so that an infinity which a mask put there on purpose and which never
reaches the loss is not taken for the fault.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from amp_checks.audit.places import line, user_frame
from amp_checks.audit.probes.recorder import Recorder
from amp_checks.audit.watching import readable, scaling
from amp_checks.audit.watching.op_facts import PRODUCTS
from amp_checks.audit.watching.state import RunState
from amp_checks.audit.watching.trace import Trace
from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import dtype_name


@dataclasses.dataclass(slots=True, kw_only=True)
class Source:
    """The op that made a non-finite value.

    Attributes:
        order: its place in the iteration.
        op, module, where, backward: which; in backward, the forward op it belongs to gives module and line.
        value: ``"inf"`` or ``"nan"``.
        inputs: dtypes of its tensors, and the greatest magnitude in them.
        deliberate: an infinite constant that the program wrote (a mask): no fault by itself.
        of_infinite: whether what came in held infinities, which were meant.
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
    of_infinite: bool = False
    given: str | None = None
    nan_by: tuple[str, str | None] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the non-finite values of one iteration came from; None where there are none of them.

    ``gradient`` is of the gradient that came first, ``parameter`` names whose it is; ``buffers`` by path.
    """

    step: int
    loss: Source | None
    gradient: Source | None
    parameter: str | None
    buffers: dict[str, Source]

    def first(self) -> Source | None:
        """The one to look at first."""
        return self.loss or self.gradient or next(iter(self.buffers.values()), None)


def first_trouble(trace: Trace, exact: Trace) -> int | None:
    """The first iteration whose loss is not finite, else whose gradients overflowed, else 0 where the state is bad.

    Buffers that are not finite in float32 either are so by design.
    """
    bad = [step for step, loss in trace.losses if not math.isfinite(loss)]
    bad = bad or [event.step for event in trace.skipped_steps]
    if bad:
        return bad[0]
    designed = {name for name, (_, finite) in exact.buffers.items() if not finite}
    finite = trace.finite and all(finite for name, (_, finite) in trace.buffers.items() if name not in designed)
    return None if finite and all(bool(value.isfinite().all()) for value in trace.gradients.values()) else 0


class SourceRecorder(Recorder[Sources]):
    """Looks at every output of every op."""

    def __init__(self, state: RunState, step: int) -> None:
        super().__init__(state, step)
        self._sources: dict[int, tuple[Source, Tensor]] = {}
        self._places: dict[int, tuple[str | None, Any]] = {}
        self._order = 0
        self._loss: Source | None = None
        self._gradient: tuple[Source, str] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if self._run.step != self._step or self._run.quiet:
            return func(*args, **kwargs)
        changes = private.is_mutating(func)
        before = [value.clone() for value in _tensors(args)[:1]] if changes else []
        out = func(*args, **kwargs)
        with private.no_function_modes():
            self._look(func, args, kwargs, out, before)
        return out

    def result(self) -> Sources:
        """What was found."""
        buffers = {name: self._source(buffer) for name, buffer in self._run.training.named_buffers().items()}
        return Sources(
            step=self._step,
            loss=self._loss,
            gradient=self._gradient[0] if self._gradient else None,
            parameter=self._gradient[1] if self._gradient else None,
            buffers={name: found for name, found in buffers.items() if found is not None},
        )

    def _look(self, func: Any, args: Any, kwargs: Any, out: Any, before: list[Tensor]) -> None:
        self._order += 1
        backward = self._run.backward_depth > 0
        if not backward and torch.is_grad_enabled():
            self._places.setdefault(private.latest_node_number(), (self._run.module, user_frame()))
        inputs = [value for value in _tensors((args, tuple(kwargs.values()))) if _is_real_or_complex(value)]
        sources = before + inputs[1:] if before else inputs
        outputs = [value for value in _tensors((out,)) if _is_real_or_complex(value)]
        if private.is_mutating(func):
            outputs += inputs[:1]
        elif "batch_norm" in func.name():
            outputs += inputs[1:]  # running statistics, which its schema does not own up to
        for tensor in outputs:
            if not readable.is_finite(tensor):
                key = _key(tensor)
                if key is not None:
                    self._sources[key] = (self._whence(func, args, kwargs, tensor, sources, inputs, backward), tensor)
            else:
                self._sources.pop(_key(tensor) or 0, None)

    def _whence(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        out: Tensor,
        sources: list[Tensor],
        inputs: list[Tensor],
        backward: bool,
    ) -> Source:
        has_nan = _has_nan(out)
        bad = [value for value in sources if not readable.is_finite(value)]
        constants = [value for value in _numbers((*args, *kwargs.values())) if not math.isfinite(value)]
        if not bad and not constants and (inputs or _is_op_on_numbers(args)):
            return self._born(func, sources, has_nan, backward)
        known = next((found for value in inputs if (found := self._source(value)) is not None), None)
        if known is None:
            known = self._born(func, sources, has_nan, backward)
            known.given = self._given(bad)
            masks = known.given is None or not any(map(_has_positive_infinity, bad))
            known.deliberate = not bad or (known.value == "inf" and masks)
            return known
        if has_nan and not any(map(_has_nan, bad)):
            if known.deliberate and not (known.given is not None and func.name().partition(".")[0] in PRODUCTS):
                return self._born(func, sources, has_nan, backward)
            if known.nan_by is None:
                _, place = self._place(backward)
                known.nan_by = (func.name(), place)
        return known

    def _given(self, bad: list[Tensor]) -> str | None:
        """The first of these that is data: what the step was called with, or what was made where no op is seen."""
        training = self._run.training
        own = {_key(value) for value in (*training.named_parameters().values(), *training.named_buffers().values())}
        found = next((value for value in bad if _key(value) not in own), None)
        if found is None:
            return None
        batch = training.batches[self._step] if self._step < len(training.batches) else ()
        in_batch = _key(found) in {_key(value) for value in scaling.tensors(batch)}
        values = readable.values(found)
        count = int((~values.isfinite()).sum()) if values is not None else 0
        shape = "x".join(map(str, found.shape)) or "scalar"
        value = "NaN" if _has_nan(found) else "infinite"
        name = f"batch {self._step}" if in_batch else "a tensor made outside of the step"
        return f"{name}, {dtype_name(found.dtype)} {shape}, of which {count} elements are {value}"

    def _born(self, func: Any, sources: list[Tensor], has_nan: bool, backward: bool) -> Source:
        module, place = self._place(backward)
        read = [values.double().abs() for value in sources if (values := readable.values(value)) is not None]
        finite = [value[value.isfinite()] for value in read]
        finite = [value for value in finite if value.numel()]
        return Source(
            order=self._order,
            op=func.name(),
            module=module,
            where=place,
            backward=backward,
            value="nan" if has_nan else "inf",
            inputs=tuple(dtype_name(value.dtype) for value in sources),
            magnitude=max((value.max().item() for value in finite), default=math.nan),
            least=min((value.min().item() for value in finite), default=math.nan),
            of_infinite=any(not bool(value.isfinite().all()) for value in read),
        )

    def _place(self, backward: bool) -> tuple[str | None, str | None]:
        if backward:
            node = private.running_node()
            number = private.node_number(node) if node is not None else -1
            module, frame = self._places.get(number, (None, None))
            if frame is None or private.custom_function_of(node) is not None:
                frame = user_frame() or frame
            return module, line(frame)
        return self._run.module, line(user_frame())

    def _source(self, tensor: Tensor) -> Source | None:
        found = self._sources.get(_key(tensor) or 0)
        return found[0] if found is not None else None

    def backward_starts(self, roots: Any) -> None:
        """Where the loss came from."""
        if self._run.step == self._step and self._loss is None:
            found = (self._source(root) for root in roots if isinstance(root, Tensor))
            self._loss = next((source for source in found if source is not None), None)

    def backward_ended(self, scale: float | None) -> None:
        """Where the first gradient came from."""
        del scale
        if self._run.step != self._step or self._gradient is not None:
            return
        found = [
            (source, gradient.name)
            for gradient in self._run.book.gradients.values()
            if gradient.parameter.grad is not None and (source := self._source(gradient.parameter.grad)) is not None
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


def _is_real_or_complex(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _has_nan(tensor: Tensor) -> bool:
    values = readable.values(tensor)
    return values is not None and bool(values.isnan().any())


def _has_positive_infinity(tensor: Tensor) -> bool:
    values = readable.values(tensor)
    return values is not None and bool((values == math.inf).any())


def _numbers(values: Any) -> list[float]:
    return [value for value in values if isinstance(value, float)]


def _is_op_on_numbers(args: Any) -> bool:
    return bool(args) and not any(isinstance(value, list | tuple) for value in args)


def _key(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None
