"""What must be replaced in torch while a region is active, for the threads inside a region only.

Installed when the first region of the process begins, and taken away when the last one ends. A replacement asks
whether its own thread is inside a region, and calls the original where it is not.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.utils.checkpoint

from amp_checks.core import NotEmulated
from amp_checks.emulation import answers, pretend, switches
from amp_checks.emulation.answers import Answer
from amp_checks.emulation.refusals import REFUSALS, Refusal
from amp_checks.emulation.rules import RULES_CHANGED
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches

_lock = threading.Lock()
_patches = Patches()
_users = 0


class Region(Protocol):
    """What a replacement needs of the region that its thread is in."""

    device_type: str
    inside_op: bool
    is_default_device: bool
    direct: set[Any]

    def function_mode_on(self) -> AbstractContextManager[None]:
        """Put the function mode back on, for user code that torch calls back."""


Current = Callable[[], Region | None]
Replace = Callable[[Current, Any], Any]


def _when_inside(answer: Callable[[Region, Any, tuple[Any, ...], dict[str, Any]], Any]) -> Replace:
    """A replacement that gives ``answer(region, original, args, kwargs)`` inside a region; outside, the original's."""

    def replace(current: Current, original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            region = current()
            return original(*args, **kwargs) if region is None else answer(region, original, args, kwargs)

        return replacement

    return replace


def _constant(value: object) -> Replace:
    return _when_inside(lambda *_: value)


def _lazy_init(region: Region, original: Any, args: Any, kwargs: Any) -> None:
    """Torch asks for a start of the device inside ops on wrappers; anyone else wants the device itself."""
    del original, args, kwargs
    if not region.inside_op:
        frame = sys._getframe(2)
        module = frame.f_globals.get("__name__", "torch")
        raise NotEmulated(
            f"{module}.{frame.f_code.co_name}",
            f"it needs the {region.device_type} runtime, which is not there; call it only where "
            f"torch.{region.device_type}.is_available() is True",
        )


def _engine_run_backward(region: Region, original: Any, args: Any, kwargs: Any) -> Any:
    """Hooks, custom functions and recomputation run user code inside backward: it must find the emulation on."""
    with region.function_mode_on():
        return original(*args, **kwargs)


def _on_the_host(region: Region, original: Any, args: Any, kwargs: Any) -> Any:
    """Packed sequences keep their batch sizes on the CPU, and ask: answer with the tensors' real device."""
    del region
    with private.no_torch_function():
        return original(*args, **kwargs)


def _handle_torch_function(current: Current, original: Any) -> Any:
    """What functions of ``torch.nn.functional`` ask first: without the mode, in a tenth of the time, where it says so.

    Torch's own asks the mode to call the function without the mode.
    """

    def replacement(function: Any, tensors: Any, /, *args: Any, **kwargs: Any) -> Any:
        region = current()
        if region is None or function not in region.direct or not private.function_modes():
            return original(function, tensors, *args, **kwargs)
        mode = private.pop_function_mode()
        try:
            if mode is region:
                return function(*args, **kwargs)
        finally:
            private.push_function_mode(mode)
        return original(function, tensors, *args, **kwargs)

    return replacement


def _tensor_metadata(region: Region, original: Any, args: Any, kwargs: Any) -> Any:
    """Checkpoint compares what it saved inside an op with what it finds outside: name one device in both."""
    return {**original(*args, **kwargs), "device": region.device_type}


def _refusal(refusal: Refusal) -> Replace:
    """A replacement that refuses inside a region; of a class, one that stays good for ``isinstance``."""

    def refuse(region: Region | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if region is None or region.device_type == "cpu" or region.inside_op:
            return
        if not refusal.applies(region.device_type, args, kwargs):
            return
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if refusal.stands_for_user or caller.partition(".")[0] != "torch":
            raise NotEmulated(refusal.title, refusal.instead)

    def replace(current: Current, original: Any) -> Any:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            refuse(current(), args, kwargs)
            return original(*args, **kwargs)

        if isinstance(original, type):
            return _StandIn(original, replacement)
        return replacement

    return replace


class _StandIn:
    """Stands for a class: ``make`` makes its instances, of ``kinds`` too; it is the class itself in every other use.

    Modules that are first imported inside a region keep this object: it must serve them after the region too.
    """

    def __init__(self, original: Any, make: Callable[..., Any], kinds: tuple[type, ...] = ()) -> None:
        self._original = original
        self._make = make
        self._kinds = kinds

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._make(*args, **kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, (self._original, *self._kinds))

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._original)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._original,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __eq__(self, other: object) -> bool:
        return self._original is other or (isinstance(other, _StandIn) and self._original is other._original)

    def __hash__(self) -> int:
        return hash(self._original)

    def __or__(self, other: Any) -> Any:
        return self._original | other

    def __ror__(self, other: Any) -> Any:
        return other | self._original


class _Answering:
    """A replacement that answers for the device inside a region; of a class, one that stays good for ``isinstance``."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __call__(self, current: Current, original: Any) -> Any:
        answer = self._answer

        def replacement(*args: Any, **kwargs: Any) -> Any:
            region = current()
            if region is None or region.device_type != "cuda":
                return original(*args, **kwargs)
            caller = answers.caller()
            if answer.only_users and caller.partition(".")[0] == "torch":
                return original(*args, **kwargs)
            answer.note(caller, args, kwargs)
            return answer.give(original, *args, **kwargs)

        return _StandIn(original, replacement, answer.kinds) if isinstance(original, type) else replacement


def _of_a_storage(value: object) -> Replace:
    """``storage.device`` and ``storage.is_cuda``; torch's own code sees what is."""

    def replace(current: Current, original: Any) -> Any:
        def get(storage: Any) -> Any:
            region, real = current(), original.__get__(storage, type(storage))
            if region is None or region.device_type != "cuda" or answers.caller().partition(".")[0] == "torch":
                return real
            return value if real in (_HOST, False) else real

        return property(get)

    return replace


_HOST = torch.device("cpu")


def _given_by(give: Callable[..., Any]) -> Replace:
    """A replacement that calls ``give(original, *args)`` inside a region."""

    def answer(region: Region, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del region
        return give(original, *args, **kwargs)

    return _when_inside(answer)


def _cudnn_enabled(current: Current, original: Any) -> Any:
    """The switch of ``torch.backends.cudnn``, as `switches` keeps it."""
    read, write = _given_by(switches.read), _given_by(switches.write)
    return type(original)(read(current, original.getter), write(current, original.setter))


def _set_default_device(region: Region, original: Any, args: Any, kwargs: Any) -> None:
    device = args[0] if args else kwargs["device"]
    translated = pretend.translate(device, region.device_type) if device is not None else None
    region.is_default_device = device is not None and translated is not device
    original(translated)


def _get_default_device(region: Region, original: Any, args: Any, kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    return pretend.emulated_device(region.device_type) if region.is_default_device else found


def _counting(current: Current, original: Any) -> Any:
    """Tells the engine that rules may have changed."""
    del current

    def replacement(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            RULES_CHANGED.tell()

    return replacement


def table() -> Iterator[tuple[Any, str, Replace]]:
    """``(owner, attribute, replacement)``; an owner that is a dict has its item replaced."""
    yield torch.cuda.amp.common, "amp_definitely_not_available", _constant(False)
    yield torch.cuda, "is_bf16_supported", _constant(True)
    for name, module in tuple(sys.modules.items()):
        if name.startswith(("torch.cuda", "torch.xpu", "torch.mtia")) and "_lazy_init" in vars(module):
            yield module, "_lazy_init", _when_inside(_lazy_init)
    yield torch.autograd, "_engine_run_backward", _when_inside(_engine_run_backward)
    yield private.checkpoint_metadata_checks(), "default", _when_inside(_tensor_metadata)
    yield torch.nn.utils.rnn, "_packed_sequence_init_args", _when_inside(_on_the_host)
    yield torch.nn.functional, "handle_torch_function", _handle_torch_function
    yield torch, "set_default_device", _when_inside(_set_default_device)
    yield torch, "get_default_device", _when_inside(_get_default_device)
    for answer in answers.table():
        yield answer.owner, answer.name, _Answering(answer)
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        yield kind, "device", _of_a_storage(torch.device("cuda", 0))
        yield kind, "is_cuda", _of_a_storage(value=True)
    for owner, name, give in switches.places():
        yield owner, name, _given_by(give)
    yield type(torch.backends.cudnn), "enabled", _cudnn_enabled
    for refusal in REFUSALS:
        if hasattr(refusal.owner, refusal.name):
            yield refusal.owner, refusal.name, _refusal(refusal)
    yield torch.library.Library, "impl", _counting
    yield torch.library.Library, "_destroy", _counting


@contextmanager
def installed(current: Current) -> Iterator[None]:
    """The replacements, while any region of the process needs them."""
    install(current)
    try:
        yield
    finally:
        uninstall()


def install(current: Current) -> None:
    global _users  # noqa: PLW0603 - torch's own state is global, so is the count of its users
    with _lock:
        _users += 1
        if _users > 1:
            return
        _patches.callback(switches.remembered())
        for owner, name, replace in table():
            put = _patches.replace_for_all if isinstance(replace, _Answering) else _patches.replace
            put(owner, name, functools.partial(replace, current))
        # Composites would choose cuDNN's kernels for wrappers said to be on cuda, and RNN modules would prepare for it.
        _patches.callback(private.set_cudnn_enabled, private.set_cudnn_enabled(False))
        # What was compiled before runs uncompiled here. (Importing the compiler for nothing would cost seconds.)
        _patches.callback(answers.UNCOMPILED.stop)
        if "torch._dynamo" in sys.modules:
            answers.UNCOMPILED.start()


def uninstall() -> None:
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if not _users:
            _patches.close()
