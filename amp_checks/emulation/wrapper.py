"""Tensors that say they are on the emulated device, around ordinary CPU tensors.

A wrapper carries the device's autocast key, so the real C++ rule runs when an op is called with it; autograd, storage
and identity stay with the inner tensor. Wrappers live for one call. Those of leaf parameters live as long as the
parameter: autocast's weight cache knows a parameter by its tensor object.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from amp_checks.core import NotEmulated
from amp_checks.torch_api import private

Tensor = torch.Tensor
_strided = torch.strided
_make = private.make_wrapper
_is_view = private.is_view


class Runs(Protocol):
    """What a wrapper needs of its region's engine."""

    def receive(self, op: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run an op that passed autocast."""

    def inside(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a function on the inner tensors."""


class Wrapped(torch.Tensor):
    """A tensor of the emulated device; ``on_cpu`` is the inner tensor it stands for."""

    on_cpu: torch.Tensor
    engine: Runs
    """Of its region; set by `Codec`."""

    __torch_function__ = private.disabled_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return cls.engine.receive(func, types, args, kwargs)


_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.Size, torch.layout, torch.memory_format})
"""Types of arguments that hold neither a tensor nor a device."""


def _from_inner(name: str) -> Any:
    """An attribute that Python code reads off the inner tensor: the wrapper itself has no graph and no storage."""
    return property(operator.attrgetter(f"on_cpu.{name}"))


for _name in (
    "requires_grad is_leaf grad_fn grad data_ptr numpy tolist untyped_storage _version item "
    "__bool__ __int__ __float__ __index__ __array__"
).split():
    setattr(Wrapped, _name, _from_inner(_name))


def _as_op(op: Any) -> Any:
    """A method whose C++ binding asks for a guard of the device, which is not there, before it calls the op."""

    def method(self: Wrapped, *args: Any, **kwargs: Any) -> Any:
        return op(self, *args, **kwargs)

    return method


def _inside(function: Callable[..., Any]) -> Any:
    """A method that has no op, or too many, to go by: run on the inner tensors."""
    return lambda self, *args: self.engine.inside(function, (self, *args))


Wrapped.__getitem__ = _inside(operator.getitem)  # type: ignore[method-assign]
Wrapped.__setitem__ = _inside(operator.setitem)  # type: ignore[method-assign]


GUARDED_METHODS: dict[str, Any] = {
    "__invert__": torch.ops.aten.bitwise_not.default,
    "contiguous": torch.ops.aten.contiguous.default,
    "copy_": torch.ops.aten.copy_.default,
}
for _name, _op in GUARDED_METHODS.items():
    setattr(Wrapped, _name, _as_op(_op))


class Codec:
    """Wraps arguments and unwraps results, for one region.

    Sequences, dictionaries and named tuples are rebuilt only where they hold a tensor.
    """

    def __init__(self, device: torch.device, engine: Runs) -> None:
        self.device = device
        self._cpu = torch.device("cpu")
        self._wrapper = type("Wrapped", (Wrapped,), {"engine": engine})
        self._leaf_wrapper = type(
            "WrappedLeaf",
            (Wrapped,),
            {"engine": engine, "on_cpu": property(lambda self: self.on_cpu_ref())},
        )
        self._leaves: dict[int, tuple[weakref.ref[Tensor], Any]] = {}

    def wrap(self, value: Any, seen: dict[int, Any]) -> Any:
        """The value with every tensor in it wrapped.

        ``seen`` holds the wrappers that one call has made: a function that asks ``query is key`` must get one answer.
        """
        if isinstance(value, Tensor):
            kind = type(value)
            if kind is self._wrapper or kind is self._leaf_wrapper:
                return value
            key = id(value)
            wrapped = seen.get(key)
            if wrapped is None:
                if value.requires_grad and value.is_leaf and not _is_view(value):
                    wrapped = self._wrap_leaf(value)
                else:
                    wrapped = self._new(self._wrapper, value, False)
                    wrapped.on_cpu = value
                seen[key] = wrapped
            return wrapped
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple:
            return tuple([self.wrap(item, seen) for item in value])
        if kind is list:
            return [self.wrap(item, seen) for item in value]
        if kind is dict:
            return {name: self.wrap(item, seen) for name, item in value.items()}
        if isinstance(value, tuple):
            return _rebuild(value, [self.wrap(item, seen) for item in value])
        return value

    def wrap_result(self, value: Any) -> Any:
        """`wrap`, for what an op gave back: most give one tensor."""
        if isinstance(value, Tensor) and not value.is_leaf and type(value) is Tensor:
            wrapped = self._new(self._wrapper, value, False)
            wrapped.on_cpu = value
            return wrapped
        return self.wrap(value, {})

    def unwrap(self, value: Any) -> Any:
        """The value with every wrapper in it replaced by its inner tensor, and the emulated device by the CPU."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is self._wrapper:
            return value.on_cpu
        if kind is self._leaf_wrapper:
            return value.on_cpu_ref()
        if kind is tuple:
            return tuple([self.unwrap(item) for item in value])
        if kind is list:
            return [self.unwrap(item) for item in value]
        if kind is torch.device:
            return self._cpu if value.type == self.device.type else value
        if kind is dict:
            return {name: self.unwrap(item) for name, item in value.items()}
        if isinstance(value, tuple) and kind is not torch.Size:
            return _rebuild(value, [self.unwrap(item) for item in value])
        return value

    def _new(self, cls: Any, tensor: Tensor, requires_grad: bool) -> Any:
        if tensor.layout is _strided:
            try:
                # By position: names cost a fifth more. The None is a memory format, the first False pinned memory.
                return _make(
                    cls,
                    tensor.shape,
                    tensor.stride(),
                    tensor.storage_offset(),
                    None,
                    tensor.dtype,
                    _strided,
                    self.device,
                    False,
                    requires_grad,
                )
            except RuntimeError as error:
                if not tensor.is_nested:
                    raise
                raise NotEmulated(
                    "a nested tensor", "pad it to a dense tensor, or keep it out of the autocast region"
                ) from error
        return _make(
            cls,
            tensor.shape,
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=self.device,
            requires_grad=requires_grad,
        )

    def _wrap_leaf(self, tensor: Tensor) -> Any:
        key = id(tensor)
        held = self._leaves.get(key)
        if held is not None:
            wrapped = held[1]
            if held[0]() is tensor and wrapped.dtype is tensor.dtype and wrapped.shape == tensor.shape:
                return wrapped
        leaves = self._leaves
        reference = weakref.ref(tensor, lambda _: leaves.pop(key, None))
        wrapped = self._new(self._leaf_wrapper, tensor, True)
        wrapped.on_cpu_ref = reference
        leaves[key] = (reference, wrapped)
        return wrapped

    def clear(self) -> None:
        """Forget the wrappers of parameters."""
        self._leaves.clear()


def _rebuild(original: Any, items: list[Any]) -> Any:
    """A tuple of the same type: named tuples take their fields one by one, torch's own result types one sequence."""
    if hasattr(original, "_fields"):
        return type(original)(*items)
    return type(original)(items)


def holds_tensor(values: Any) -> bool:
    """Whether a sequence of arguments holds a tensor at any depth."""
    for value in values:
        if isinstance(value, Tensor):
            return True
        if isinstance(value, list | tuple):
            if holds_tensor(value):
                return True
        elif type(value) is dict and holds_tensor(value.values()):
            return True
    return False
