"""``custom_fwd`` and ``custom_bwd`` one call at a time: what they cast and leave alone, write down, and pass on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from amp_checks.families.ops.regions.program import Seen, Topic, held, named, other_low, outcome, program, tensor, value
from amp_checks.torch_api import private_regions
from amp_checks.torch_api.backend import Backend

SOURCE = "torch.amp.custom_fwd and custom_bwd documentation"
_SAME = "the same object"


class _Context:
    """Stands for the context of a custom function."""


class _List(list[Any]):
    """A list of another type."""


def _casting(backend: Backend, *, keyword: bool = False, dtype: torch.dtype | None = None) -> Callable[[Any], Any]:
    """What arrives in a forward that casts its inputs to the low dtype, called in a region."""
    target = backend.low_dtype if dtype is None else dtype

    def forward(_: Any, given: Any = None, *, named_given: Any = None) -> Any:
        return named_given if keyword else given

    call: Any = torch.amp.custom_fwd(forward, device_type=backend.device_type, cast_inputs=target)

    def arrived(given: Any) -> Any:
        with backend.region():
            return call(_Context(), named_given=given) if keyword else call(_Context(), given)

    return arrived


def _show(backend: Backend, given: Any, arrived: Any) -> str:
    """``the same object``, a dtype, or a container of such: ``list(low, the same object)``."""
    if arrived is given:
        return _SAME
    if isinstance(arrived, torch.Tensor):
        return named(backend, arrived.dtype)
    name = type(arrived).__name__
    if isinstance(arrived, dict):
        pairs = zip(given.items(), arrived.items(), strict=True)
        shown = [f"{_show(backend, k, new_k)}: {_show(backend, v, new_v)}" for (k, v), (new_k, new_v) in pairs]
    elif isinstance(arrived, list | tuple):
        shown = [_show(backend, *pair) for pair in zip(given, arrived, strict=True)]
    elif isinstance(arrived, Iterator):
        shown = [_show(backend, None, each) for each in arrived]
    else:
        return name
    return f"{name}({', '.join(shown)})"


@program(
    Topic.FUNCTIONS,
    {
        "float32": "low",
        "float32, by keyword": "low",
        "the other 16-bit dtype": "low",
        "low": _SAME,
        "float64": _SAME,
        "int64": _SAME,
        "bool": _SAME,
        "complex64": _SAME,
        "float32 on another device": _SAME,
        "low, to float32": "float32",
    },
    source=f"{SOURCE}: casts floating-point tensors of its device; float64 is left alone",
)
def cast_tensors(backend: Backend) -> Seen:
    x = tensor(backend, 2)
    given = {
        "float32": x,
        "the other 16-bit dtype": x.to(other_low(backend)),
        "low": x.to(backend.low_dtype),
        "float64": x.double(),
        "int64": x.long(),
        "bool": x > 0,
        "complex64": x.to(torch.complex64),
        "float32 on another device": torch.ones(2, device="meta"),
    }
    by_keyword, to_float32 = _casting(backend, keyword=True), _casting(backend, dtype=torch.float32)
    arrived = _casting(backend)
    return {
        **{name: value(lambda v=v: _show(backend, v, arrived(v))) for name, v in given.items()},  # type: ignore[misc]
        "float32, by keyword": value(lambda: _show(backend, x, by_keyword(x))),
        "low, to float32": value(lambda: _show(backend, None, to_float32(given["low"]))),
    }


@program(
    Topic.FUNCTIONS,
    {
        "list": "list(low, the same object)",
        "tuple": "tuple(low, the same object)",
        "a list of another type": "_List(low)",
        "dict": "dict(the same object: low)",
        "dict with a tensor for a key": "dict(low: the same object)",
        "nested": "dict(the same object: list(tuple(low), the same object))",
        "generator": "generator(low)",
        "list, by keyword": "list(low)",
        "string": _SAME,
        "bytes": _SAME,
        "numpy array": _SAME,
        "number": _SAME,
        "None": _SAME,
    },
    source=f"{SOURCE}: containers of tensors are cast; strings and arrays are no containers",
)
def cast_containers(backend: Backend) -> Seen:
    x, count = tensor(backend, 2), 3
    given: dict[str, Any] = {
        "list": [x, count],
        "tuple": (x, count),
        "a list of another type": _List([x]),
        "dict": {"a": x},
        "dict with a tensor for a key": {x: count},
        "nested": {"a": [(x,), "text"]},
        "generator": (each for each in (x,)),
        "string": "text",
        "bytes": b"text",
        "numpy array": numpy.ones(2),
        "number": 3.5,
        "None": None,
    }
    arrived, by_keyword = _casting(backend), _casting(backend, keyword=True)
    return {
        **{name: value(lambda v=v: _show(backend, v, arrived(v))) for name, v in given.items()},  # type: ignore[misc]
        "list, by keyword": value(lambda: _show(backend, [x], by_keyword([x]))),
    }


def _forwards(backend: Backend) -> dict[str, Callable[..., Any]]:
    """The three ways through ``custom_fwd``: without a cast, with one in a region, with one in none."""

    def in_region(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            with backend.region():
                return call(*args, **options)

        return run

    def decorated(function: Callable[..., Any], **options: Any) -> Any:
        return torch.amp.custom_fwd(function, device_type=backend.device_type, **options)

    def plain(_: Any, *args: Any, **options: Any) -> Any:
        return (held(backend), args, options)

    return {
        "no cast": in_region(decorated(plain)),
        "no cast, in no region": decorated(plain),
        "cast": in_region(decorated(plain, cast_inputs=torch.float32)),
        "cast, in no region": decorated(plain, cast_inputs=torch.float32),
    }


@program(
    Topic.FUNCTIONS,
    {
        "no cast": "on in low, cache on, depth 1; on low",
        "no cast, in no region": "off in low, cache on, depth 0; off low",
        "cast": "off in low, cache on, depth 2; off low",
        "cast, in no region": "off in low, cache on, depth 0; off low",
        "arguments": "True True True True",
    },
    source=f"{SOURCE}: the state of forward, and what it writes down for backward",
)
def forward_state(backend: Backend) -> Seen:
    device, seen, passed = backend.device_type, {}, []
    before = torch.get_autocast_dtype(device)
    one, two = object(), object()
    torch.set_autocast_dtype(device, backend.low_dtype)  # so that in no region the dtype is low as well

    def state(call: Callable[..., Any]) -> str:
        context = _Context()
        inside, args, options = call(context, one, two=two)
        passed.append(len(args) == 1 and args[0] is one and list(options) == ["two"] and options["two"] is two)
        used, dtype = private_regions.recorded_in_forward(context)
        return f"{inside}; {'on' if used else 'off'} {named(backend, dtype)}"

    try:
        for name, call in _forwards(backend).items():
            seen[name] = value(lambda call=call: state(call))  # type: ignore[misc]
    finally:
        torch.set_autocast_dtype(device, before)
    return {**seen, "arguments": " ".join(map(str, passed))}


@program(
    Topic.FUNCTIONS,
    {
        "after a region": "on in low, cache on, depth 1",
        "in a region of the other dtype": "on in low, cache off, depth 2",
        "of a disabled forward, in a region": "off in low, cache on, depth 2",
        "of a casting forward, in a region": "off in low, cache on, depth 2",
        "of a casting forward in no region, in a region": "off in low, cache on, depth 2",
        "arguments and result": True,
        "after it raised": True,
    },
    source=f"{SOURCE}: backward runs in the state of forward",
)
def backward_state(backend: Backend) -> Seen:
    device, one, two = backend.device_type, object(), object()
    forwards, before = _forwards(backend), torch.get_autocast_dtype(device)

    def backward(*args: Any, **options: Any) -> Any:
        return held(backend), args, options

    call: Any = torch.amp.custom_bwd(backward, device_type=device)

    def after(name: str, *, disabled: bool = False) -> Any:
        context = _Context()
        if disabled:
            with backend.region(enabled=False):
                forwards["no cast, in no region"](context)
        else:
            forwards[name](context)
        return context

    def in_region(context: Any, **options: Any) -> str:
        with backend.autocast(device, **{"dtype": backend.low_dtype, **options}):
            return str(call(context)[0])

    def passes_on() -> bool:
        context = after("no cast")
        _, args, options = call(context, one, two=two)
        return bool(args == (context, one) and options == {"two": two})

    def restored() -> bool:
        def fail(_: Any) -> None:
            raise KeyError("mine")

        failing: Any = torch.amp.custom_bwd(fail, device_type=device)
        found = held(backend)
        raised = outcome(lambda: failing(after("no cast")))
        return raised == "KeyError: 'mine'" and held(backend) == found

    torch.set_autocast_dtype(device, backend.low_dtype)
    try:
        return {
            "after a region": value(lambda: str(call(after("no cast"))[0])),
            "in a region of the other dtype": value(
                lambda: in_region(after("no cast"), dtype=other_low(backend), cache_enabled=False)
            ),
            "of a disabled forward, in a region": value(lambda: in_region(after("", disabled=True))),
            "of a casting forward, in a region": value(lambda: in_region(after("cast"))),
            "of a casting forward in no region, in a region": value(lambda: in_region(after("cast, in no region"))),
            "arguments and result": value(passes_on),
            "after it raised": value(restored),
        }
    finally:
        torch.set_autocast_dtype(device, before)


@program(
    Topic.FUNCTIONS,
    {
        "custom_fwd: name, text": "forward, What it does.",
        "custom_bwd: name, text": "backward, What it undoes.",
        "custom_fwd with arguments casts": "float32",
        "custom_bwd with arguments": "on in low, cache on, depth 1",
        "a cast in no region": "the same object, the same object",
        "no cast": "the same object, the same object",
        "state after a casting forward raised": True,
    },
    source=f"{SOURCE}: decorators, with and without arguments; in no region custom_fwd does nothing",
)
def custom_decorators(backend: Backend) -> Seen:
    device = backend.device_type
    x = tensor(backend, 2).to(backend.low_dtype)

    def forward(_: Any, given: Any, *, again: Any = None) -> Any:
        """What it does."""
        return given, again

    def backward(_: Any) -> str:
        """What it undoes."""
        return held(backend)

    def fail(_: Any) -> None:
        raise KeyError("mine")

    fwd: Any = torch.amp.custom_fwd
    bwd: Any = torch.amp.custom_bwd
    casting = fwd(device_type=device, cast_inputs=torch.float32)

    def inside(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with backend.region():
            return function(*args, **options)

    def same(found: Any) -> str:
        return ", ".join(_show(backend, x, each) for each in found)

    def backward_state_after_region() -> str:
        context = _Context()
        inside(fwd(forward, device_type=device), context, x)
        return str(bwd(device_type=device)(backward)(context))

    def restored() -> bool:
        before = held(backend)
        return outcome(lambda: casting(fail)(_Context())) == "KeyError: 'mine'" and held(backend) == before

    def described(function: Any) -> str:
        return f"{function.__name__}, {function.__doc__}"

    return {
        "custom_fwd: name, text": value(lambda: described(fwd(forward, device_type=device))),
        "custom_bwd: name, text": value(lambda: described(bwd(backward, device_type=device))),
        "custom_fwd with arguments casts": value(
            lambda: named(backend, inside(casting(forward), _Context(), x)[0].dtype)
        ),
        "custom_bwd with arguments": value(backward_state_after_region),
        "a cast in no region": value(lambda: same(casting(forward)(_Context(), x, again=x))),
        "no cast": value(lambda: same(inside(fwd(forward, device_type=device), _Context(), x, again=x))),
        "state after a casting forward raised": value(lambda: inside(restored)),
    }
