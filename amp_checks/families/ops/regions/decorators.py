"""Regions as decorators, and around code that is suspended: generators and coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from typing import Any

from amp_checks.families.ops.regions.program import Seen, Topic, product, program
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
