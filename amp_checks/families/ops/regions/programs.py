"""What regions do, as small programs that report what they saw; the rows of `amp_checks.families.ops.regions.cases`
say what is right.

Each program takes a backend and returns a value for each subject. ``low`` stands for the region's dtype, so
that one row serves every backend. Programs that leave autocast's state changed (where a torch does) are
cleaned up by their check.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from amp_checks.core import Backend, Value, first_line, recorded_warnings
from amp_checks.families.ops.entry import entries
from amp_checks.torch_api.numerics import dtype_name, randn

Seen = dict[str, Value]


def tensor(backend: Backend, *shape: int, seed: str = "regions") -> torch.Tensor:
    """A float32 tensor on the backend's device."""
    return randn(*shape, seed=seed, device=backend.device_type)


def weight(backend: Backend, *shape: int, seed: str = "weight") -> torch.nn.Parameter:
    """A float32 parameter on the backend's device."""
    return torch.nn.Parameter(tensor(backend, *shape, seed=seed))


def named(backend: Backend, dtype: torch.dtype) -> str:
    """``low`` for the region's dtype, else the dtype's name."""
    return "low" if dtype is backend.low_dtype else dtype_name(dtype)


def product(backend: Backend) -> str:
    """The dtype that a product of float32 matrices has here."""
    a = tensor(backend, 4, 4)
    return named(backend, torch.mm(a, a).dtype)


def outcome(function: Callable[[], Any]) -> str:
    """``TypeError: first line`` of what was raised, or ``no exception``."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - every kind is what is looked at
        return f"{type(error).__name__}: {first_line(error)}"
    return "no exception"


def switches(backend: Backend) -> str:
    """The three switches of autocast on the backend's device."""
    device = backend.device_type
    return (
        f"enabled={torch.is_autocast_enabled(device)} dtype={dtype_name(torch.get_autocast_dtype(device))} "
        f"cache={torch.is_autocast_cache_enabled()}"
    )


# --- State: what entering and leaving change.
# --------------------------------------------------------------------------


def nested(backend: Backend) -> Seen:
    before = switches(backend)
    with backend.region():
        inside = product(backend)
        with backend.region(enabled=False, cache_enabled=False):
            disabled = product(backend)
            with backend.region():
                again = product(backend)
        back = product(backend)
    return {
        "inside": inside,
        "off inside": disabled,
        "on inside off": again,
        "on again": back,
        "switches restored": switches(backend) == before,
    }


def left_by_exception(backend: Backend) -> Seen:
    before = switches(backend)

    def fail() -> None:
        with backend.region(), backend.region(enabled=False):
            raise KeyError("mine")

    return {"exception": outcome(fail), "switches restored": switches(backend) == before}


def failing_op(backend: Backend) -> Seen:
    before = switches(backend)

    def fail() -> None:
        with backend.region():
            torch.mm(tensor(backend, 4, 4), tensor(backend, 3, 3))

    return {"raised": outcome(fail).partition(":")[0], "switches restored": switches(backend) == before}


def instance_in_sequence(backend: Backend) -> Seen:
    region = backend.region()
    with region:
        first = product(backend)
    between = product(backend)
    with region:
        second = product(backend)
    return {"first": first, "between": between, "second": second, "after": product(backend)}


def instance_in_itself(backend: Backend) -> Seen:
    region = backend.region()
    with region, region:
        inside = product(backend)
    return {"inside": inside, "after": product(backend)}


def default_dtype(backend: Backend) -> Seen:
    with backend.autocast(backend.device_type):
        a = tensor(backend, 4, 4)
        return {"dtype of a region that names none": dtype_name(torch.mm(a, a).dtype)}


def other_device(backend: Backend) -> Seen:
    other = "xpu" if backend.device_type != "xpu" else "mtia"
    before = torch.is_autocast_enabled(other)
    torch.set_autocast_enabled(other, True)
    try:
        without = product(backend)
    finally:
        torch.set_autocast_enabled(other, before)
    return {"under another device's autocast": without}


def asked_without_device(backend: Backend) -> Seen:
    with backend.region():
        return {
            "is_autocast_enabled(device)": torch.is_autocast_enabled(backend.device_type),
            "is_autocast_enabled() is cuda's": torch.is_autocast_enabled() == torch.is_autocast_enabled("cuda"),
        }


# --- Arguments: what a region refuses.
# ---------------------------------------------------------------------------------


def bad_arguments(backend: Backend) -> Seen:
    autocast: Any = backend.autocast

    def enter(*args: Any, **kwargs: Any) -> Callable[[], None]:
        def run() -> None:
            with autocast(*args, **kwargs):
                pass

        return run

    return {
        "device object": outcome(enter(torch.device(backend.device_type))),
        "unknown device": outcome(enter("quantum")).partition(":")[0],
        "meta": outcome(enter("meta")).partition(":")[0],
        "not callable": outcome(lambda: autocast(backend.device_type)(3)).partition(".")[0],
        "enabled not a bool": outcome(enter(backend.device_type, enabled="yes")).partition(":")[0],
    }


def unsupported_dtype(backend: Backend) -> Seen:
    with recorded_warnings() as caught:
        with backend.autocast(backend.device_type, dtype=torch.float64):
            inside = product(backend)
        told = sum("dtype is not supported" in str(warning.message) for warning in caught)
        caught.clear()
        with backend.autocast(backend.device_type, dtype=torch.float64, enabled=False):
            pass
        quiet = sum("dtype is not supported" in str(warning.message) for warning in caught)
    return {"warned": told > 0, "product inside": inside, "warned where disabled": quiet > 0}


def float32_region(backend: Backend) -> Seen:
    with backend.region(), backend.autocast(backend.device_type, dtype=torch.float32):
        return {"product in a float32 region inside a low one": product(backend)}


# --- Decorators.
# -------------------------------------------------------------------------------------------------------


def _decorated(backend: Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    region: Any = backend.region()
    made: Callable[..., Any] = region(function)
    return made


def decorated_function(backend: Backend) -> Seen:
    function = _decorated(backend, lambda: product(backend))
    return {"inside": function(), "again": function(), "after": product(backend)}


def decorated_recursion(backend: Backend) -> Seen:
    seen: list[str] = []

    def descend(depth: int) -> None:
        seen.append(product(backend))
        if depth:
            again(depth - 1)

    again = _decorated(backend, descend)
    again(2)
    return {"inside": ", ".join(seen), "after": product(backend)}


def decorated_generator(backend: Backend) -> Seen:
    def generate() -> Iterator[str]:
        yield product(backend)

    return {"inside": next(iter(_decorated(backend, generate)()))}


def decorated_coroutine(backend: Backend) -> Seen:
    async def work() -> str:
        return product(backend)

    return {"inside": asyncio.run(_decorated(backend, work)())}


def suspended_generator(backend: Backend) -> Seen:
    def generate() -> Generator[str, None, None]:
        with backend.region():
            yield product(backend)

    running = generate()
    inside = next(running)
    caller = product(backend)
    running.close()
    return {"inside": inside, "in the caller, while it is suspended": caller}


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


# --- Threads.
# ----------------------------------------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> Any:
    """What the function gives in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


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


# --- Weight cache.
# -----------------------------------------------------------------------------------------------------


def casts(backend: Backend, *uses: Callable[[], Any]) -> int:
    """How many tensors were cast on the device while the functions ran."""
    with entries("to.dtype") as seen:
        for use in uses:
            use()
    return sum(entry.device == backend.device_type for entry in seen)


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


def cache_after_update(backend: Backend) -> Seen:
    def through_data(w: torch.nn.Parameter) -> None:
        w.data = torch.zeros_like(w.data)

    return {
        "in place: new weight used": _updated(backend, lambda w: w.zero_()),
        "through .data: new weight used": _updated(backend, through_data),
    }


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


def cache_releases(backend: Backend) -> Seen:
    def use() -> weakref.ref[torch.nn.Parameter]:
        w = weight(backend, 4, 4)
        with backend.region():
            torch.nn.functional.linear(tensor(backend, 2, 4), w)
            return weakref.ref(w)

    reference = use()
    gc.collect()
    return {"parameter alive after its region": reference() is not None}


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


PROGRAMS: dict[str, Callable[[Backend], Seen]] = {
    function.__name__: function
    for function in (
        *(nested, left_by_exception, failing_op, instance_in_sequence, instance_in_itself, default_dtype),
        *(other_device, asked_without_device, bad_arguments, unsupported_dtype, float32_region),
        *(decorated_function, decorated_recursion, decorated_generator, decorated_coroutine),
        *(suspended_generator, awaiting_region, new_thread, thread_leaves_cache_alone),
        *(cache_hits, cache_after_update, cache_between_regions, cache_across_dtypes, cache_releases),
        no_grad_then_grad,
    )
}
