"""Runs one op: the device's rule on the outside, the CPU's kernel and autograd on the inside.

Outside, a call is made with wrapped tensors and with autograd's keys excluded, so that only the device's autocast rule
runs before `Engine.dispatch` receives the op with its inputs already cast. Inside, the op runs on the CPU tensors under
the key sets that the caller had, autograd and all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks import _torch_private as private
from amp_checks.core import NotEmulated
from amp_checks.emulation import numerics, shims, support
from amp_checks.emulation.rules import (
    RULES_CHANGED,
    KERNELS_THAT_REACH_RULES,
    reaches_no_rule,
    registered_rules,
)
from amp_checks.emulation.wrapper import Codec

Numerics = Literal["native", "float32"]

_include = private.include_set
_exclude = private.exclude_set
_force = private.force_keys
_push = private.push_dispatch_mode
_pop = private.pop_dispatch_mode

class Recorder(Protocol):
    """Told of each op at its own entry, below autocast."""

    def record(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...


class _Factory(TorchDispatchMode):
    """Brings ops to the engine that have no tensor among their arguments (``zeros(device="cuda")`` in a composite).

    It also keeps the user's own dispatch modes away from the outer call: they see the inner ops, on CPU tensors.
    """

    def __init__(self, dispatch: Callable[..., Any]) -> None:
        super().__init__()
        self.dispatch = dispatch


def _to_engine(
    self: _Factory, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    del types
    return self.dispatch(func, args, kwargs or {})


# Set from outside: what a class body defines, torch wraps in a switch for its compiler that costs more than the rest.
_Factory.__torch_dispatch__ = _to_engine  # type: ignore[assignment]


class _KernelOnWrappers(TorchDispatchMode):
    """Catches one op below autograd and runs its kernel on wrappers, so that the rules inside it apply."""

    def __init__(self, engine: Engine, op: Any) -> None:
        super().__init__()
        self._engine = engine
        self._op = op

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func is not self._op:
            return func(*args, **(kwargs or {}))
        key = KERNELS_THAT_REACH_RULES[func.name()]
        return self._engine.call(
            lambda *a, **k: private.run_kernel(func, key, a, k), args, kwargs or {}, below_autograd=True
        )


class Engine:
    """One region's ops. Belongs to the thread that entered the region."""

    def __init__(
        self, device_type: str, numerics_mode: Numerics, function_mode_on: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._function_mode_on = function_mode_on
        self.device_type = device_type
        self.device = torch.device(device_type) if device_type == "cpu" else torch.device(device_type, 0)
        self.numerics: Numerics = numerics_mode
        self.codec = Codec(self.device, self)
        self.recorders: list[Recorder] = []
        self._factory = _Factory(self.dispatch)
        self._outer_excluded = private.autograd_key_set()
        self._functorch = private.functorch_key_set()
        # On the device "cpu" the inner tensors would meet the real rules again, and a missing one would go unseen.
        self.hidden_keys = private.autocast_key_set("cpu") if device_type == "cpu" else None
        self._inner: tuple[Any, Any] = (_include(), _exclude())
        self._outer_exclude: Any = None
        self._rules: frozenset[str] = frozenset()
        self._rules_at = -1
        self._composite: dict[Any, bool] = {}

    def rules(self) -> frozenset[str]:
        """The device's rules as of the last change made to the dispatcher."""
        if self._rules_at != RULES_CHANGED.count:
            self._rules_at = RULES_CHANGED.count
            self._rules = registered_rules(self.device_type)
            self._composite.clear()
        return self._rules

    def call(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        below_autograd: bool = False,
    ) -> Any:
        """Call a function of torch with its tensors on the emulated device.

        ``below_autograd``: the call is made by the kernel of an op whose gradient autograd has taken care of; the
        keys in force outside are those of the call that led to it.
        """
        include, exclude = _include(), _exclude()
        before = self._inner, self._outer_exclude
        outer_exclude = self._outer_exclude if below_autograd else exclude | self._outer_excluded
        self._inner = (include, exclude if self.hidden_keys is None else exclude | self.hidden_keys)
        self._outer_exclude = outer_exclude
        codec = self.codec
        seen: dict[int, Any] = {}
        try:
            wrapped = [codec.wrap(value, seen) for value in args]
            named = {name: codec.wrap(value, seen) for name, value in kwargs.items()} if kwargs else {}
            with _force(include - self._functorch, outer_exclude):
                _push(self._factory)
                try:
                    out = func(*wrapped, **named)
                finally:
                    _pop(None)
            return codec.unwrap(out)
        finally:
            self._inner, self._outer_exclude = before

    def dispatch(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op that passed autocast: whole on the inner tensors, or decomposed so that rules inside it apply."""
        composite = self._composite.get(op) if self._rules_at == RULES_CHANGED.count else None
        if composite is None:
            composite = self._is_unlisted_composite(op)
        if composite:
            _push(self._factory)
            try:
                with _force(_include(), self._outer_exclude):
                    return private.decompose(op, args, kwargs)
            finally:
                _pop(None)
        codec = self.codec
        inner_args = tuple([codec.unwrap(value) for value in args])
        inner_kwargs = {name: codec.unwrap(value) for name, value in kwargs.items()} if kwargs else kwargs
        with _force(*self._inner):
            out = self._run(op, inner_args, inner_kwargs)
        for recorder in self.recorders:
            recorder.record(op, inner_args, inner_kwargs, out)
        return codec.wrap_result(out)

    def inside(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a function on the inner tensors, for code of torch's own that was called with wrappers."""
        _pop(None)
        try:
            with _force(*self._inner):
                return self.codec.wrap_result(function(*self.codec.unwrap(args)))
        finally:
            _push(self._factory)

    def _run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shim = shims.SHIMS.get(op)
        if shim is not None:
            return shim(op, *args, **kwargs)
        if self.numerics == "float32" and numerics.applies(op, args, kwargs):
            return numerics.run(op, args, kwargs)
        try:
            if op.namespace != "aten":
                # Its kernel may be Python: user code, which must find the emulation on.
                with self._function_mode_on():
                    return private.call_below_function_modes(op, args, kwargs)
            if op.name() in KERNELS_THAT_REACH_RULES:
                with _KernelOnWrappers(self, op):
                    return op(*args, **kwargs)
            return op(*args, **kwargs)
        except RuntimeError as error:
            lack = support.lack(op.name(), error, self.device_type)
            if lack is None:
                raise
            raise NotEmulated(op.name(), lack) from error

    def _is_unlisted_composite(self, op: Any) -> bool:
        name = op.name()
        rules = self.rules()
        base = name.removeprefix("aten::").partition(".")[0]
        found = name not in rules and not reaches_no_rule(base, rules) and private.is_composite_implicit(name)
        self._composite[op] = found
        return found
