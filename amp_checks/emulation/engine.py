"""Runs one op: the device's rule on the outside, the CPU's kernel and autograd on the inside.

Outside, a call is made with wrapped tensors and with autograd's keys excluded, so that only the device's autocast rule
runs before `Engine.dispatch` receives the op with its inputs already cast. Inside, the op runs on the CPU tensors under
the key sets that the caller had, autograd and all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.core import NotEmulated
from amp_checks.emulation import layers, numerics, pretend, recorded, shims, support
from amp_checks.emulation.rules import (
    KERNELS_THAT_REACH_RULES,
    calls_no_rule,
    reaches_no_rule,
    registered_rules,
    rnn_layers_are_cast,
)
from amp_checks.emulation.wrapper import Codec
from amp_checks.torch_api import private

Numerics = Literal["native", "float32"]

_include = private.include_set
_exclude = private.exclude_set
_force = private.force_keys
_push = private.push_dispatch_mode
_pop = private.pop_dispatch_mode

Runner = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an op on inner tensors: takes the op, its arguments and its keyword arguments."""


class Recorder(Protocol):
    """Told of each op at its own entry, below autocast."""

    def record(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...


class _KernelOnWrappers(TorchDispatchMode):
    """Catches one op below autograd and runs its kernel on wrappers, so that the rules inside it apply."""

    def __init__(self, engine: Engine, op: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._engine = engine
        self._op = op

    def catch(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """The op itself is run on wrappers; what else passes is left alone."""
        del types
        if func is not self._op:
            return func(*args, **(kwargs or {}))
        key = KERNELS_THAT_REACH_RULES[func.name()]
        return self._engine.call(
            lambda *a, **k: private.run_kernel(func, key, a, k), args, kwargs or {}, below_autograd=True
        )


HEARERS: list[Callable[[Any, tuple[Any, ...], Any], None]] = []
"""Called with each op that ran in float32 inside, its arguments and its result as the device would have them."""


class Engine(TorchDispatchMode):
    """One region's ops. Belongs to the thread that entered the region.

    As a dispatch mode it receives the ops that have no tensor among their arguments too (``zeros(device="cuda")`` in a
    composite), and keeps the user's own dispatch modes away from the outer call: they see the inner ops.
    """

    def __init__(
        self, device_type: str, numerics_mode: Numerics, function_mode_on: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._function_mode_on = function_mode_on
        self.device_type = device_type
        self.device = pretend.emulated_device(device_type)
        self.numerics: Numerics = numerics_mode
        self.codec = Codec(self.device, self)
        self.recorders: list[Recorder] = []
        self._outer_excluded = private.autograd_key_set()
        self._functorch = private.functorch_key_set()
        # On the device "cpu" the inner tensors would meet the real rules again, and a missing one would go unseen.
        self.hidden_keys = private.one_key(private.autocast_key("cpu")) if device_type == "cpu" else None
        self.replacing = 0
        """How many ops deep it runs code of its own in the place of an op."""
        self._inner: tuple[Any, Any] = (_include(), _exclude())
        self._outer_exclude: Any = None
        self._rules: frozenset[str] | None = None
        self._runners: dict[int, tuple[Any, Runner | None]] = {}
        """How each op runs, by its identity: an op's hash is Python code, slower than the rest of a look-up."""

    def rules(self) -> frozenset[str]:
        """The device's rules as of the last change made to the dispatcher."""
        if self._rules is None:
            self._rules = registered_rules(self.device_type)
        return self._rules

    def forget_rules(self) -> None:
        """Rules may have changed."""
        self._rules = None
        self._runners.clear()

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
                _push(self)
                try:
                    out = func(*wrapped, **named)
                finally:
                    _pop(None)
            return codec.unwrap(out)
        finally:
            self._inner, self._outer_exclude = before

    def receive(self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """An op that passed autocast, from torch: run whole on the inner tensors, or decomposed so that rules apply."""
        del types
        known = self._runners.get(id(op))
        runner = known[1] if known is not None and known[0] is op else self._choose(op)
        if runner is None:
            if op in layers.LAYERS:
                layer = self._whole_layer(op, args)
                if layer is not None:
                    return self._run_layer(*layer)
                args = layers.with_sizes_on_the_host(op, args, self.codec.unwrap)
            _push(self)
            try:
                with _force(_include(), self._outer_exclude):
                    return private.decompose(op, args, kwargs or {})
            finally:
                _pop(None)
        codec = self.codec
        unwrap = codec.unwrap
        inner_args = tuple([unwrap(value) for value in args])
        inner_kwargs = {name: unwrap(value) for name, value in kwargs.items()} if kwargs else {}
        with _force(*self._inner):
            out = runner(op, inner_args, inner_kwargs)
        if self.recorders:
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
            _push(self)

    def _choose(self, op: Any) -> Runner | None:
        """How the op runs: None to decompose it."""
        name = op.name()
        rules = self.rules()
        base = name.removeprefix("aten::").partition(".")[0]
        runner: Runner | None
        if name not in rules and not reaches_no_rule(base, rules) and private.is_composite_implicit(name):
            runner = None
        elif op in shims.SHIMS:
            shim = shims.SHIMS[op]
            runner = lambda op, args, kwargs: self._replace(shim, op, *args, **kwargs)  # noqa: E731 - one of several
        elif op.namespace != "aten":
            runner = self._run_custom
        elif name in KERNELS_THAT_REACH_RULES and name not in rules:
            runner = self._run_kernel_on_wrappers
        elif base in recorded.REFUSED or base in recorded.RUN_WIDE:
            runner = recorded.runner(name, self.device_type, self._run)
        elif (name in support.WIDENED and self.device_type != "cpu") or (
            self.numerics == "float32" and op in numerics.FLOAT32_OPS
        ):
            runner = self._run_in_float32
        else:
            runner = self._run
        self._runners[id(op)] = (op, runner)
        return runner

    def _whole_layer(self, op: Any, args: tuple[Any, ...]) -> tuple[layers.Layer, list[Any]] | None:
        """The RNN layer that cuDNN would run whole, and cast; None where torch's own ops make it up."""
        if (
            self.numerics != "float32"
            or not rnn_layers_are_cast(self.device_type, self.rules())
            or private.has_key(self._outer_exclude, private.autocast_key(self.device_type))
        ):
            return None
        with _force(*self._inner):
            transforming = private.transforms_active()
        return None if transforming else layers.layer_of(op, self.codec.unwrap(args))

    def _run_layer(self, layer: layers.Layer, tensors: list[Any]) -> Any:
        with _force(*self._inner):
            low = layers.cast(tensors)
            out = self._replace(layers.run, layer, low)
        for recorder in self.recorders:
            recorder.record(private.CUDNN_RNN, layers.seen_as(layer, low), {}, out)
        return self.codec.wrap_result(out)

    def _replace(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.replacing += 1
        try:
            return run(*args, **kwargs)
        finally:
            self.replacing -= 1

    def _run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return op(*args, **kwargs)
        except RuntimeError as error:
            lack = support.lack(op.name(), error, self.device_type)
            if lack is None:
                raise
            raise NotEmulated(op.name(), lack) from error

    def _run_in_float32(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not numerics.applies(args, kwargs):
            return self._run(op, args, kwargs)
        out = self._replace(numerics.run, op, args, kwargs)
        for hear in HEARERS:
            hear(op, args, out)
        return out

    def _run_custom(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The kernel of an op from outside torch may be Python: user code, which must find the emulation on."""
        with self._function_mode_on():
            return private.call_below_function_modes(op, args, kwargs)

    def _run_kernel_on_wrappers(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if calls_no_rule(op.name(), args):
            return self._run(op, args, kwargs)
        with _KernelOnWrappers(self, op):
            return self._run(op, args, kwargs)


# Set from outside: what the body of a mode defines, torch wraps in a switch for its compiler that costs more than all.
_KernelOnWrappers.__torch_dispatch__ = _KernelOnWrappers.catch  # type: ignore[assignment]
Engine.__torch_dispatch__ = Engine.receive  # type: ignore[assignment]
