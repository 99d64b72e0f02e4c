"""Attributes of torch, replaced for a while: the one place that replaces any and puts it back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import ClassMethodDescriptorType, FunctionType
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


def _named(replacement: Any, original: Any) -> Any:
    return functools.wraps(original)(replacement) if isinstance(replacement, FunctionType) else replacement


def _function_of(method: Any) -> Callable[..., Any]:
    """What a class method calls with the class: one that is written in C has no function, and is bound instead."""
    if isinstance(method, classmethod):
        return method.__func__

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(None, cls)(*args, **kwargs)

    return call
