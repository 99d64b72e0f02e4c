"""The weight cache: what it keeps, how long, and that it changes no result."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch

from amp_checks.core import first_line
from amp_checks.families.ops.entry import entries
from amp_checks.families.ops.regions.program import Seen, Topic, program, tensor, weight
from amp_checks.torch_api.backend import Backend


def casts(backend: Backend, *uses: Callable[[], Any]) -> int:
    """How many tensors were cast on the device while the functions ran."""
    with entries("to.dtype") as seen:
        for use in uses:
            use()
    return sum(entry.device == backend.device_type for entry in seen)


@program(
    Topic.CACHE,
    {
        "casts of a parameter used three times": 1,
        "in the next region": 1,
        "with the cache off": 3,
        "of a view": 3,
        "of a result": 3,
        "of a tensor without gradient": 3,
        "after an inner region": 0,
        "after clear_autocast_cache": 1,
    },
    source="comments of cached_cast in aten/src/ATen/autocast_mode.cpp",
)
def cache_hits(backend: Backend) -> Seen:
    leaf, plain = weight(backend, 4, 4), tensor(backend, 4, 4)
    view = leaf[:2]
    computed = leaf * 1.0
    x = tensor(backend, 2, 4).to(backend.low_dtype)

    def uses(w: torch.Tensor, *, cache: bool | None = None) -> int:
        with backend.region(cache_enabled=cache):
            return casts(backend, *[lambda: torch.nn.functional.linear(x, w)] * 3)

    def again_after_inner_region() -> int:
        with backend.region():
            torch.nn.functional.linear(x, leaf)
            with backend.region():
                pass
            return casts(backend, lambda: torch.nn.functional.linear(x, leaf))

    def again_after_clearing() -> int:
        with backend.region():
            torch.nn.functional.linear(x, leaf)
            torch.clear_autocast_cache()
            return casts(backend, lambda: torch.nn.functional.linear(x, leaf))

    return {
        "casts of a parameter used three times": uses(leaf),
        "in the next region": uses(leaf),
        "with the cache off": uses(leaf, cache=False),
        "of a view": uses(view),
        "of a result": uses(computed),
        "of a tensor without gradient": uses(plain),
        "after an inner region": again_after_inner_region(),
        "after clear_autocast_cache": again_after_clearing(),
    }


def _updated(backend: Backend, update: Callable[[torch.nn.Parameter], Any]) -> bool:
    w, x = weight(backend, 4, 4), tensor(backend, 2, 4)
    with backend.region():
        torch.nn.functional.linear(x, w)
        with torch.no_grad():
            update(w)
        return bool((torch.nn.functional.linear(x, w) == 0).all())


@program(
    Topic.CACHE,
    {"in place: new weight used": True, "through .data: new weight used": True},
    source="a cache must not change results",
)
def cache_after_update(backend: Backend) -> Seen:
    def through_data(w: torch.nn.Parameter) -> None:
        w.data = torch.zeros_like(w.data)

    return {
        "in place: new weight used": _updated(backend, lambda w: w.zero_()),
        "through .data: new weight used": _updated(backend, through_data),
    }


@program(
    Topic.CACHE,
    {"alone: new weight used": True, "inside a disabled region: new weight used": True},
    source="a cache must not change results",
)
def cache_between_regions(backend: Backend) -> Seen:
    def second_region_uses_new(*outer: Any) -> bool:
        w, x = weight(backend, 4, 4), tensor(backend, 2, 4)
        for region in outer:
            region.__enter__()
        with backend.region():
            torch.nn.functional.linear(x, w)
        with torch.no_grad():
            w.zero_()
        with backend.region():
            new = bool((torch.nn.functional.linear(x, w) == 0).all())
        for region in reversed(outer):
            region.__exit__(None, None, None)
        return new

    return {
        "alone: new weight used": second_region_uses_new(),
        "inside a disabled region: new weight used": second_region_uses_new(backend.region(enabled=False)),
    }


@program(
    Topic.CACHE,
    {"linear in a region of the other dtype inside": "other", "mm of two cached weights there": "other"},
    source="an op runs in the dtype of its region",
)
def cache_across_dtypes(backend: Backend) -> Seen:
    other = torch.bfloat16 if backend.low_dtype is torch.float16 else torch.float16
    w, x = weight(backend, 4, 4), tensor(backend, 2, 4)

    def nested_product(use: Callable[[], torch.Tensor]) -> str:
        try:
            with backend.region():
                use()
                with backend.autocast(backend.device_type, dtype=other):
                    return "other" if use().dtype is other else "low"
        except RuntimeError as error:
            return f"RuntimeError: {first_line(error)}"

    return {
        "linear in a region of the other dtype inside": nested_product(lambda: torch.nn.functional.linear(x, w)),
        "mm of two cached weights there": nested_product(lambda: torch.mm(w, w)),
    }


@program(Topic.CACHE, {"parameter alive after its region": False})
def cache_releases(backend: Backend) -> Seen:
    def use() -> weakref.ref[torch.nn.Parameter]:
        w = weight(backend, 4, 4)
        with backend.region():
            torch.nn.functional.linear(tensor(backend, 2, 4), w)
            return weakref.ref(w)

    reference = use()
    gc.collect()
    return {"parameter alive after its region": reference() is not None}


@program(
    Topic.CACHE,
    {"after no_grad": True, "after inference_mode": True, "after set_grad_enabled(False)": True},
    source="gradients as without autocast: pytorch issues 65766 and 112583",
)
def no_grad_then_grad(backend: Backend) -> Seen:
    def has_gradient(first: Callable[[], Any]) -> bool:
        w, x = weight(backend, 4, 4), tensor(backend, 2, 4)
        with backend.region():
            with first():
                torch.nn.functional.linear(x, w)
            out = torch.nn.functional.linear(x, w)
        if not out.requires_grad:
            return False
        return torch.autograd.grad(out.float().sum(), w)[0].dtype is torch.float32

    return {
        "after no_grad": has_gradient(torch.no_grad),
        "after inference_mode": has_gradient(torch.inference_mode),
        "after set_grad_enabled(False)": has_gradient(lambda: torch.set_grad_enabled(False)),
    }
