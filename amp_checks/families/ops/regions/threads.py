"""What another thread has of a region, and of its weight cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from amp_checks.families.ops.regions.cache import casts
from amp_checks.families.ops.regions.program import Seen, Topic, product, program, tensor, weight
from amp_checks.torch_api.backend import Backend

_THREAD = "an emulated region holds for the thread that entered it"


def in_thread(function: Callable[[], Any]) -> Any:
    """What the function gives in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@program(
    Topic.THREADS,
    {"enabled in a new thread": False, "default dtype there": True, "product there": "float32", "product here": "low"},
    source="autocast state is thread-local, torch.amp documentation",
    real_only=_THREAD,
)
def new_thread(backend: Backend) -> Seen:
    device = backend.device_type
    default = torch.get_autocast_dtype(device)
    with backend.region():
        return {
            "enabled in a new thread": in_thread(lambda: torch.is_autocast_enabled(device)),
            "default dtype there": in_thread(lambda: torch.get_autocast_dtype(device)) == default,
            "product there": in_thread(lambda: product(backend)),
            "product here": product(backend),
        }


@program(
    Topic.THREADS,
    {"casts of the weight after another thread left a region": 0},
    source="a region's cache lives to the end of its outermost region",
    real_only=_THREAD,
)
def thread_leaves_cache_alone(backend: Backend) -> Seen:
    w, x = weight(backend, 4, 4), tensor(backend, 2, 4).to(backend.low_dtype)

    def elsewhere() -> None:
        with backend.region():
            pass

    with backend.region():
        torch.nn.functional.linear(x, w)
        in_thread(elsewhere)
        again = casts(backend, lambda: torch.nn.functional.linear(x, w))
    return {"casts of the weight after another thread left a region": again}
