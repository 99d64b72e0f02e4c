"""Regions as decorators, and around code that is suspended: generators and coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from amp_checks.families.ops.regions.program import Seen, Topic, held, outcome, product, program, tensor, value
from amp_checks.torch_api.backend import Backend


def _decorated(backend: Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    region: Any = backend.region()
    made: Callable[..., Any] = region(function)
    return made


@program(Topic.DECORATORS, {"inside": "low", "again": "low", "after": "float32"})
def decorated_function(backend: Backend) -> Seen:
    function = _decorated(backend, lambda: product(backend))
    return {"inside": function(), "again": function(), "after": product(backend)}


@program(Topic.DECORATORS, {"inside": "low, low, low", "after": "float32"})
def decorated_recursion(backend: Backend) -> Seen:
    seen: list[str] = []

    def descend(depth: int) -> None:
        seen.append(product(backend))
        if depth:
            again(depth - 1)

    again = _decorated(backend, descend)
    again(2)
    return {"inside": ", ".join(seen), "after": product(backend)}


@program(Topic.DECORATORS, {"inside": "low"})
def decorated_generator(backend: Backend) -> Seen:
    def generate() -> Iterator[str]:
        yield product(backend)

    return {"inside": next(iter(_decorated(backend, generate)()))}


@program(Topic.DECORATORS, {"inside": "low"})
def decorated_coroutine(backend: Backend) -> Seen:
    async def work() -> str:
        return product(backend)

    return {"inside": asyncio.run(_decorated(backend, work)())}


@program(Topic.DECORATORS, {"inside": "low", "in the caller, while it is suspended": "float32"})
def suspended_generator(backend: Backend) -> Seen:
    def generate() -> Generator[str, None, None]:
        with backend.region():
            yield product(backend)

    running = generate()
    inside = next(running)
    caller = product(backend)
    running.close()
    return {"inside": inside, "in the caller, while it is suspended": caller}


@program(Topic.DECORATORS, {"in another task, while one waits in a region": "float32"})
def awaiting_region(backend: Backend) -> Seen:
    async def holder() -> None:
        with backend.region():
            await asyncio.sleep(0.01)

    async def other() -> str:
        await asyncio.sleep(0)
        return product(backend)

    async def both() -> str:
        _, seen = await asyncio.gather(holder(), other())
        return seen

    return {"in another task, while one waits in a region": asyncio.run(both())}


@program(
    Topic.DECORATORS,
    {
        "name, text": "work, What it does.",
        "what it wraps": True,
        "arguments": "(1, 'two') {'three': 3}",
        "the very tensor that was returned": True,
        "inside": "on in low, cache on, depth 1",
        "exception": "KeyError: 'mine'",
        "after the exception": True,
        "what TorchScript says of it": "@autocast() decorator is not supported in script mode",
        "torch.amp.autocast_mode.autocast_decorator": "on in low, cache on, depth 1",
    },
    source="a decorated function is the function, in the region",
)
def decorated_is_the_function(backend: Backend) -> Seen:
    before, kept = held(backend), tensor(backend, 2)

    def work(*args: Any, **options: Any) -> str:
        """What it does."""
        return f"{args} {options}"

    def fail() -> None:
        raise KeyError("mine")

    made = _decorated(backend, work)
    return {
        "name, text": value(lambda: f"{made.__name__}, {made.__doc__}"),
        "what it wraps": value(lambda: getattr(made, "__wrapped__", None) is work),
        "arguments": value(lambda: made(1, "two", three=3)),
        "the very tensor that was returned": value(lambda: _decorated(backend, lambda: kept)() is kept),
        "inside": value(_decorated(backend, lambda: held(backend))),
        "exception": outcome(_decorated(backend, fail)),
        "after the exception": held(backend) == before,
        "what TorchScript says of it": value(lambda: str(getattr(made, "__script_unsupported", None))),
        "torch.amp.autocast_mode.autocast_decorator": value(
            lambda: torch.amp.autocast_mode.autocast_decorator(backend.region(), held)(backend)
        ),
    }
