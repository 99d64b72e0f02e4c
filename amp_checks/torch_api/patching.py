"""Attributes of torch, replaced for a while: the one place that replaces any and puts it back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import ClassMethodDescriptorType, CodeType, FunctionType
from typing import Any

Make = Callable[[Any], Any]
"""Makes a replacement of the original."""


class Patches(ExitStack):
    """Replacements that hold until the stack is closed, which puts the originals back, the newest first."""

    def replace(self, owner: Any, name: Any, make: Make) -> None:
        """Replace ``owner.name``, or the item ``owner[name]`` of a dict, by ``make(original)``.

        Of a class method, ``make`` is given the function, which takes the class; the replacement is a class method
        again. A replacement that is a Python function gets the original's name and documentation.

        Raises:
            AttributeError, KeyError: there is nothing of that name.
        """
        if isinstance(owner, dict):
            self.callback(owner.__setitem__, name, owner[name])
            owner[name] = _named(make(owner[name]), owner[name])
            return
        original = inspect.getattr_static(owner, name)
        if isinstance(original, classmethod | ClassMethodDescriptorType):
            function = _function_of(original)
            replacement: Any = classmethod(_named(make(function), function))
        else:
            replacement = _named(make(original), original)
        if name in vars(owner):
            self.callback(setattr, owner, name, original)
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, replacement)

    def replace_for_all(self, owner: Any, name: str, make: Make) -> None:
        """As `replace`, also for those who hold the function itself (``from torch.cuda import is_available``).

        A plain function keeps its identity and gets another body; ``make`` is given one with the body it had, which
        stays its ``__wrapped__`` meanwhile. Anything else (classes, C functions, closures) is replaced by its name.
        """
        function = inspect.getattr_static(owner, name)
        if not isinstance(function, FunctionType) or function.__closure__:
            self.replace(owner, name, make)
        elif not is_body_replaced(function):  # the same function may be found under two names
            code = function.__code__
            original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
            original.__kwdefaults__ = function.__kwdefaults__
            functools.update_wrapper(original, function)
            self.callback(setattr, function, "__code__", code)
            self.callback(function.__dict__.pop, "__wrapped__", None)
            function.__dict__["__wrapped__"] = original  # signature and unwrapping find the original
            function.__code__ = _body(make(original))


def _calls_the_replacement(*args: Any, **kwargs: Any) -> Any:
    replacement: Any = "the replacement"
    return replacement(*args, **kwargs)


def _body(replacement: Callable[..., Any]) -> CodeType:
    """Code that calls the replacement, held as a constant: globals and closure are the function's own."""
    code = _calls_the_replacement.__code__
    constants = tuple(replacement if value == "the replacement" else value for value in code.co_consts)
    return code.replace(co_consts=constants)


def is_body_replaced(function: Any) -> bool:
    """Whether `Patches.replace_for_all` has replaced this function's body."""
    code = getattr(function, "__code__", None)
    return code is not None and is_trampoline(code)


def is_trampoline(code: CodeType) -> bool:
    """Whether a frame with that code only passes a call on to a replacement."""
    template = _calls_the_replacement.__code__
    return code.co_filename == template.co_filename and code.co_name == template.co_name


def _named(replacement: Any, original: Any) -> Any:
    return functools.wraps(original)(replacement) if isinstance(replacement, FunctionType) else replacement


def _function_of(method: Any) -> Callable[..., Any]:
    """What a class method calls with the class: one that is written in C has no function, and is bound instead."""
    if isinstance(method, classmethod):
        return method.__func__

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(None, cls)(*args, **kwargs)

    return call
