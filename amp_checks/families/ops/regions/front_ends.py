"""The names under which torch has autocast, deprecated ones among them: each opens the same region."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.cpu.amp import autocast_mode

from amp_checks.core import recorded_warnings
from amp_checks.families.ops.regions.program import Seen, Topic, held, named, outcome, program, tensor, texts, value
from amp_checks.torch_api import private_regions
from amp_checks.torch_api.backend import Backend

_DEPRECATED = "FutureWarning: `torch.{0}(args...)` is deprecated. Please use `torch.amp.{1} instead."


@program(
    Topic.ARGUMENTS,
    {
        "amp": "autocast, autocast_decorator, custom_bwd, custom_fwd, is_autocast_available",
        "cpu.amp": "autocast",
        "cuda.amp": "autocast, custom_bwd, custom_fwd",
        "torch.autocast is torch.amp.autocast": True,
    },
    source="torch.amp documentation",
)
def public_names(_: Backend) -> Seen:
    def names(package: str) -> str:
        module = importlib.import_module(f"torch.{package}.autocast_mode")
        return ", ".join(sorted(name for name in module.__all__ if hasattr(module, name)))

    return {
        **{package: value(lambda package=package: names(package)) for package in ("amp", "cpu.amp", "cuda.amp")},  # type: ignore[misc]
        "torch.autocast is torch.amp.autocast": torch.autocast is torch.amp.autocast,
    }


def _front_end(backend: Backend, make: Callable[..., Any]) -> Seen:
    """What a deprecated class of regions does, which takes ``enabled, dtype, cache_enabled``."""
    low, before = backend.low_dtype, held(backend)

    def inside(*args: Any, **options: Any) -> str:
        with make(*args, **options):
            return held(backend)

    def entered() -> bool:
        region = make(dtype=low)
        with region as given:
            return given is region

    def fail() -> None:
        with make(dtype=low):
            raise KeyError("mine")

    def warned() -> str:
        with recorded_warnings() as caught:
            make()
        return texts(caught, caller=warned)

    return {
        "signature": value(lambda: str([f"{each.name}={each.default}" for each in _parameters(make)])),
        "warning": value(warned),
        "nothing named": value(inside),
        "by position": value(lambda: inside(True, low, False)),
        "disabled": value(lambda: inside(False, low)),
        "by name": value(lambda: inside(enabled=False, dtype=low, cache_enabled=False)),
        "around a function": value(lambda: make(dtype=low)(held)(backend)),
        "what `as` names": value(entered),
        "the exception": outcome(fail),
        "a torch.autocast": value(lambda: isinstance(make(), torch.autocast)),
        "after": held(backend) == before,
    }


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _expected(name: str, dtype: str, instead: str) -> dict[str, str | bool]:
    return {
        "signature": f"['enabled=True', 'dtype=torch.{dtype}', 'cache_enabled=True']",
        "warning": _DEPRECATED.format(name, instead),
        "nothing named": "on in DEFAULT, cache on, depth 1",
        "by position": "on in low, cache off, depth 1",
        "disabled": "off in low, cache on, depth 1",
        "by name": "off in low, cache off, depth 1",
        "around a function": "on in low, cache on, depth 1",
        "what `as` names": True,
        "the exception": "KeyError: 'mine'",
        "a torch.autocast": True,
        "after": True,
    }


def _default_is_its(backend: Backend, seen: Seen, default: str) -> Seen:
    """Name the dtype of a region that names none as the documentation does, whichever dtype the backend has."""
    text = str(seen["nothing named"])
    return {**seen, "nothing named": text.replace(" low,", f" {backend.dtype},").replace(f" {default},", " DEFAULT,")}


@program(
    Topic.STATE,
    _expected("cpu.amp.autocast", "bfloat16", "autocast('cpu', args...)`"),
    source="torch.cpu.amp.autocast documentation",
    devices=("cpu",),
)
def cpu_front_end(backend: Backend) -> Seen:
    return _default_is_its(backend, _front_end(backend, autocast_mode.autocast), "bfloat16")


@program(
    Topic.STATE,
    _expected("cuda.amp.autocast", "float16", "autocast('cuda', args...)`"),
    source="torch.cuda.amp.autocast documentation",
    devices=("cuda",),
)
def cuda_front_end(backend: Backend) -> Seen:
    return _default_is_its(backend, _front_end(backend, torch.cuda.amp.autocast), "float16")


class _Context:
    """Stands for the context of a custom function."""


@program(
    Topic.FUNCTIONS,
    {
        "custom_fwd": _DEPRECATED.format("cuda.amp.custom_fwd", "custom_fwd(args..., device_type='cuda')`"),
        "custom_bwd": _DEPRECATED.format("cuda.amp.custom_bwd", "custom_bwd(args..., device_type='cuda')`"),
        "_cast": _DEPRECATED.format(
            "cuda.amp.autocast_mode._cast", "autocast_mode._cast(value, 'cuda', dtype)`"
        ).replace("args...", "value, dtype"),
        "forward": "on in low, cache on, depth 1",
        "casting forward": "float32",
        "casting forward, decorated with arguments": "float32",
        "backward": "on in low, cache on, depth 1",
        "what _cast gives": "float32",
    },
    source="torch.cuda.amp documentation",
    devices=("cuda",),
)
def custom_functions_front_end(backend: Backend) -> Seen:
    front: Any = torch.cuda.amp
    (x,) = (tensor(backend, 2).to(backend.low_dtype),)
    warned: Seen = {}

    def made(name: str, make: Callable[[], Any]) -> Any:
        with recorded_warnings() as caught:
            found = make()
        warned[name] = texts(caught, caller=make)
        return found

    def dtype_of(_: Any, given: torch.Tensor) -> str:
        return named(backend, given.dtype)

    def state(_: Any) -> str:
        return held(backend)

    def inside(function: Callable[..., Any], *args: Any) -> Any:
        with backend.region():
            return function(*args)

    context = _Context()
    cast = private_regions.cast_of_cuda_front_end()
    return {
        "forward": value(lambda: inside(made("custom_fwd", lambda: front.custom_fwd(state)), context)),
        "casting forward": value(lambda: inside(front.custom_fwd(dtype_of, cast_inputs=torch.float32), _Context(), x)),
        "casting forward, decorated with arguments": value(
            lambda: inside(front.custom_fwd(cast_inputs=torch.float32)(dtype_of), _Context(), x)
        ),
        "backward": value(lambda: made("custom_bwd", lambda: front.custom_bwd(state))(context)),
        "what _cast gives": value(lambda: dtype_of(None, made("_cast", lambda: cast(x, torch.float32)))),
        **{name: warned.get(name) for name in ("custom_fwd", "custom_bwd", "_cast")},
    }
