"""`emulate`: the region, and the function mode through which every call of torch passes inside it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from amp_checks.core import DEVICE_TYPES
from amp_checks.emulation import patches, plans, pretend
from amp_checks.emulation.engine import HEARERS, Engine, Numerics, Recorder
from amp_checks.emulation.plans import Plan
from amp_checks.emulation.rules import RULES_CHANGED
from amp_checks.emulation.wrapper import holds_tensor
from amp_checks.torch_api import private

_is_autocast_enabled = torch.is_autocast_enabled
_to = torch.Tensor.to
_local = threading.local()


def current() -> Region | None:
    """The region that this thread is in."""
    return getattr(_local, "region", None)


def replaces_op() -> bool:
    """Whether the emulation runs code of its own in an op's place, in this thread: its casts are not the program's."""
    region = current()
    return region is not None and region.engine.replacing > 0


@contextmanager
def hearing_of_replaced(hear: Callable[[Any, tuple[Any, ...], Any], None]) -> Iterator[None]:
    """Inside, ``hear`` is called with each op that runs in float32 inside: the op, its arguments, its rounded result.

    While such an op runs, `replaces_op` is true of all that a dispatch mode sees.
    """
    HEARERS.append(hear)
    try:
        yield
    finally:
        HEARERS.remove(hear)


def _leave_forked_child() -> None:
    """A process forked inside a region prepares data, with tensors on the host: there is no emulation in it."""
    region = current()
    if region is not None:
        region.off = True
        _local.region = None


os.register_at_fork(after_in_child=_leave_forked_child)


class Region(TorchFunctionMode):
    """One ``with emulate(...)`` of one thread: sees every call of a torch function that user code makes."""

    def __init__(self, device_type: str, numerics: Numerics) -> None:
        super().__init__()
        self.device_type = device_type
        self.engine = Engine(device_type, numerics, self.function_mode_on)
        self.inside_op = False
        self.is_default_device = False
        self.off = False
        self._plans: dict[Any, Plan] = {}
        self.direct: set[Any] = set()
        """Functions that need nothing from the emulation at this moment: they cost one look-up."""

    def forget_plans(self) -> None:
        """Rules changed, or somebody began or ceased to observe."""
        self.engine.forget_rules()
        self._plans.clear()
        self.direct.clear()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self.direct:
            if kwargs is None:
                return func(*args)
            if "device" not in kwargs and "pin_memory" not in kwargs:
                return func(*args, **kwargs)
        return self._emulate(func, args, kwargs or {})

    def _emulate(  # noqa: C901 - the order of these questions is the emulation
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.off:
            return func(*args, **kwargs)
        handler = pretend.HANDLERS.get(func)
        if handler is not None:
            answer = handler(self.device_type, args, kwargs)
            if answer is not NotImplemented:
                return answer
            return func(*args, **kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": pretend.translate(kwargs["device"], self.device_type)}
        if kwargs.get("pin_memory"):
            return pretend.pinned(self._emulate(func, args, {**kwargs, "pin_memory": False}))
        if func is _to:
            args = (args[0], *(pretend.translate(value, self.device_type) for value in args[1:]))
        engine = self.engine
        plan = self._plans.get(func) or self._plan(func)
        if plan is Plan.PASS or not (_is_autocast_enabled(self.device_type) or engine.recorders or plan is Plan.ALWAYS):
            return func(*args, **kwargs)
        if plan is Plan.SKIP and not engine.recorders:
            if engine.hidden_keys is None:
                return func(*args, **kwargs)
            with private.force_keys(private.include_set(), private.exclude_set() | engine.hidden_keys):
                return func(*args, **kwargs)
        if not holds_tensor(args) and not holds_tensor(kwargs.values()):
            return func(*args, **kwargs)
        before, self.inside_op = self.inside_op, True
        try:
            return engine.call(plans.ALIASES.get(func, func), args, kwargs)
        finally:
            self.inside_op = before

    def _plan(self, func: Callable[..., Any]) -> Plan:
        engine = self.engine
        plan = self._plans[func] = plans.plan(func, engine.rules())
        skipped = plan is Plan.SKIP and engine.hidden_keys is None and not engine.recorders
        if (plan is Plan.PASS or skipped) and func is not _to:
            self.direct.add(func)
        return plan

    @contextmanager
    def recorded_by(self, recorder: Recorder) -> Iterator[None]:
        """Tell the recorder of each op, until the end of the block."""
        self.engine.recorders.append(recorder)
        self.forget_plans()
        try:
            yield
        finally:
            self.engine.recorders.remove(recorder)
            self.forget_plans()

    @contextmanager
    def function_mode_on(self) -> Iterator[None]:
        """Put the mode back on inside one of its own calls, for user code that torch calls back."""
        before, self.inside_op = self.inside_op, False
        private.push_function_mode(self)
        try:
            yield
        finally:
            private.pop_function_mode()
            self.inside_op = before


@contextmanager
def emulate(device_type: str, *, numerics: Numerics = "native") -> Iterator[None]:
    """Run torch programs under another device's autocast rules, on CPU tensors, in this thread.

    Inside, ``device="cuda"``, ``.to("cuda")``, ``.cuda()``, ``.device`` and ``.is_cuda`` speak of the emulated device
    while tensors, parameters, optimizers and scalers stay ordinary CPU objects; ``torch.autocast("cuda")`` and
    ``torch.amp.GradScaler("cuda")`` work unmodified. ``torch.cuda`` answers as one idle GPU would: it is available,
    streams run in order, memory is free (`amp_checks.emulation.answers`). Everything is restored on exit.

    Args:
        device_type: ``"cuda"``, ``"xpu"``, ``"mps"``, ``"mtia"``, ``"maia"``; or ``"cpu"``, the emulation's own gate.
        numerics: ``"native"``: the CPU's own half kernels. ``"float32"``: products and convolutions in float32 inside,
            rounded once.

    Raises:
        ValueError: an unknown device type or numerics.
        NotEmulated: inside, where the emulation and not AMP lacks something.
    """
    if device_type not in DEVICE_TYPES:
        raise ValueError(f"device_type must be one of {', '.join(DEVICE_TYPES)}; got {device_type!r}")
    if numerics not in ("native", "float32"):
        raise ValueError(f"numerics must be 'native' or 'float32'; got {numerics!r}")
    outer = current()
    if outer is not None:
        if (outer.device_type, outer.engine.numerics) != (device_type, numerics):
            raise ValueError(
                f"emulate({device_type!r}, numerics={numerics!r}) inside emulate({outer.device_type!r}, "
                f"numerics={outer.engine.numerics!r}): leave the outer region first"
            )
        yield
        return
    RULES_CHANGED.tell()  # rules may have changed since the last region, unseen
    with patches.installed(current):
        region = Region(device_type, numerics)
        _local.region = region
        try:
            with RULES_CHANGED.heard_by(region.forget_plans), region:
                yield
        finally:
            _local.region = None
            region.engine.codec.clear()
