"""What a region sets when it is entered, and puts back when it is left, however either comes about."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from amp_checks.families.ops.regions.program import Seen, Topic, held, named, other_low, outcome, program, value
from amp_checks.torch_api import private_regions
from amp_checks.torch_api.backend import Backend

SOURCE = "torch.autocast documentation: its arguments and their defaults"


def _inside(backend: Backend, **options: Any) -> str:
    with backend.autocast(backend.device_type, **options):
        return held(backend)


@program(
    Topic.STATE,
    {
        "enabled and cache not named": "on in low, cache on, depth 1",
        "cache off": "on in low, cache off, depth 1",
        "disabled": "off in low, cache on, depth 1",
        "dtype not named, the default changed before": "on in low, cache on, depth 1",
        "cache not named, off before": "on in low, cache off, depth 1",
        "cache asked for, off before": "on in low, cache on, depth 1",
        "by position": "off in low, cache off, depth 1",
    },
    source=SOURCE,
)
def switches_inside(backend: Backend) -> Seen:
    device, low = backend.device_type, backend.low_dtype
    before = torch.get_autocast_dtype(device)

    def by_position() -> str:
        with backend.autocast(device, low, False, False):
            return held(backend)

    def default_changed() -> str:
        torch.set_autocast_dtype(device, low)
        try:
            return _inside(backend)
        finally:
            torch.set_autocast_dtype(device, before)

    def cache_off(**options: Any) -> str:
        torch.set_autocast_cache_enabled(False)
        try:
            return _inside(backend, dtype=low, **options)
        finally:
            torch.set_autocast_cache_enabled(True)

    return {
        "enabled and cache not named": value(lambda: _inside(backend, dtype=low)),
        "cache off": value(lambda: _inside(backend, dtype=low, cache_enabled=False)),
        "disabled": value(lambda: _inside(backend, dtype=low, enabled=False)),
        "dtype not named, the default changed before": value(default_changed),
        "cache not named, off before": value(cache_off),
        "cache asked for, off before": value(lambda: cache_off(cache_enabled=True)),
        "by position": value(by_position),
    }


@program(
    Topic.STATE,
    {
        "after the inner region": "on in low, cache off, depth 1",
        "after the inner region, left by an exception": "on in low, cache off, depth 1",
        "the exception": "KeyError: 'mine'",
        "what `as` names": True,
        "after all": True,
    },
    source="a region is left in the state that was there before it",
)
def inner_region_left(backend: Backend) -> Seen:
    device, before = backend.device_type, held(backend)
    seen: Seen = {}
    outer: Any = backend.region(cache_enabled=False)

    def inner() -> Any:
        return backend.autocast(device, dtype=other_low(backend), enabled=False, cache_enabled=True)

    def fail() -> None:
        with inner():
            raise KeyError("mine")

    with outer as entered:
        with inner():
            pass
        seen["after the inner region"] = held(backend)
        seen["the exception"] = outcome(fail)
        seen["after the inner region, left by an exception"] = held(backend)
        seen["what `as` names"] = entered is outer
    return {**seen, "after all": held(backend) == before}


class _Listening(TorchFunctionMode):
    """Notes each call by which a region is entered or left, and lets it through."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith("_autocast"):
            shown = [named(self.backend, arg) if isinstance(arg, torch.dtype) else str(arg) for arg in args]
            self.calls.append(f"{name} {' '.join(shown) if name.startswith('_enter') else len(args)}".strip())
        return func(*args, **(kwargs or {}))


@program(
    Topic.STATE,
    {
        "inside": "on in low, cache off, depth 1",
        "after": True,
        "seen by a function mode": "_enter_autocast DEVICE low True False, _exit_autocast 1",
        "inside, under a function mode": "on in low, cache off, depth 1",
        "after, under a function mode": True,
        "a with statement seen by a function mode": "",
        "inside that": "on in low, cache on, depth 1",
        "its exception": "KeyError: 'mine'",
        "after that": True,
    },
    source="torch.export records a region by the functions that enter and leave it",
)
def entered_by_function(backend: Backend) -> Seen:
    device, before = backend.device_type, held(backend)
    settings = (device, backend.low_dtype, True, False)

    def through() -> tuple[str, bool]:
        entered = private_regions.enter_autocast(*settings)
        inside = held(backend)
        private_regions.exit_autocast(entered)
        return inside, held(backend) == before

    plain = _pair(through)
    with _Listening(backend) as mode:
        under_mode = _pair(through)
    within: list[str] = []

    def fail() -> None:
        with backend.region():
            within.append(held(backend))
            raise KeyError("mine")

    with _Listening(backend) as silent:
        raised = outcome(fail)
    return {
        "inside": plain[0],
        "after": plain[1],
        "seen by a function mode": ", ".join(mode.calls).replace(device, "DEVICE"),
        "inside, under a function mode": under_mode[0],
        "after, under a function mode": under_mode[1],
        "a with statement seen by a function mode": ", ".join(silent.calls),
        "inside that": within[0] if within else "never entered",
        "its exception": raised,
        "after that": held(backend) == before,
    }


def _pair(function: Any) -> tuple[Any, Any]:
    """What the function gives, or what it raised, twice."""
    found: list[Any] = []
    raised = outcome(lambda: found.extend(function()))
    return (found[0], found[1]) if found else (raised, raised)
