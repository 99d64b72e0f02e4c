"""The state of autocast as regions set it, and the arguments that a region refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_checks.core import recorded_warnings
from amp_checks.families.ops.regions.program import Seen, Topic, outcome, product, program, tensor
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name

DEFAULT_DTYPES = {
    "cuda": "float16",
    "cpu": "bfloat16",
    "xpu": "float16",
    "mps": "float16",
    "mtia": "float16",
    "maia": "bfloat16",
}
"""The dtype of a region that names none."""


def switches(backend: Backend) -> str:
    """The three switches of autocast on the backend's device."""
    device = backend.device_type
    return (
        f"enabled={torch.is_autocast_enabled(device)} dtype={dtype_name(torch.get_autocast_dtype(device))} "
        f"cache={torch.is_autocast_cache_enabled()}"
    )


@program(
    Topic.STATE,
    {"inside": "low", "off inside": "float32", "on inside off": "low", "on again": "low", "switches restored": True},
)
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


@program(Topic.STATE, {"exception": "KeyError: 'mine'", "switches restored": True})
def left_by_exception(backend: Backend) -> Seen:
    before = switches(backend)

    def fail() -> None:
        with backend.region(), backend.region(enabled=False):
            raise KeyError("mine")

    return {"exception": outcome(fail), "switches restored": switches(backend) == before}


@program(Topic.STATE, {"raised": "RuntimeError", "switches restored": True})
def failing_op(backend: Backend) -> Seen:
    before = switches(backend)

    def fail() -> None:
        with backend.region():
            torch.mm(tensor(backend, 4, 4), tensor(backend, 3, 3))

    return {"raised": outcome(fail).partition(":")[0], "switches restored": switches(backend) == before}


@program(Topic.STATE, {"first": "low", "between": "float32", "second": "low", "after": "float32"})
def instance_in_sequence(backend: Backend) -> Seen:
    region = backend.region()
    with region:
        first = product(backend)
    between = product(backend)
    with region:
        second = product(backend)
    return {"first": first, "between": between, "second": second, "after": product(backend)}


@program(Topic.STATE, {"inside": "low", "after": "float32"})
def instance_in_itself(backend: Backend) -> Seen:
    region = backend.region()
    with region, region:
        inside = product(backend)
    return {"inside": inside, "after": product(backend)}


@program(
    Topic.STATE,
    expected_on={device: {"dtype of a region that names none": name} for device, name in DEFAULT_DTYPES.items()},
    source="the table of default dtypes in aten/src/ATen/autocast_mode.cpp",
)
def default_dtype(backend: Backend) -> Seen:
    with backend.autocast(backend.device_type):
        a = tensor(backend, 4, 4)
        return {"dtype of a region that names none": dtype_name(torch.mm(a, a).dtype)}


@program(Topic.STATE, {"under another device's autocast": "float32"})
def other_device(backend: Backend) -> Seen:
    other = "xpu" if backend.device_type != "xpu" else "mtia"
    before = torch.is_autocast_enabled(other)
    torch.set_autocast_enabled(other, True)
    try:
        without = product(backend)
    finally:
        torch.set_autocast_enabled(other, before)
    return {"under another device's autocast": without}


@program(
    Topic.STATE,
    {"is_autocast_enabled(device)": True, "is_autocast_enabled() is cuda's": True},
    source="without a device type, torch.is_autocast_enabled answers for cuda: give it one",
)
def asked_without_device(backend: Backend) -> Seen:
    with backend.region():
        return {
            "is_autocast_enabled(device)": torch.is_autocast_enabled(backend.device_type),
            "is_autocast_enabled() is cuda's": torch.is_autocast_enabled() == torch.is_autocast_enabled("cuda"),
        }


@program(
    Topic.ARGUMENTS,
    {
        "device object": "ValueError: Expected `device_type` of type `str`, got: `<class 'torch.device'>`",
        "unknown device": "RuntimeError",
        "meta": "RuntimeError",
        "not callable": "TypeError: autocast()(func) requires a callable, but got int",
        "enabled not a bool": "TypeError",
    },
)
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


@program(
    Topic.ARGUMENTS,
    {"warned": True, "product inside": "float32", "warned where disabled": False},
    source="torch.autocast warns of a dtype that its device does not support, and disables itself",
)
def unsupported_dtype(backend: Backend) -> Seen:
    with recorded_warnings() as caught:
        with backend.autocast(backend.device_type, dtype=torch.float64):
            inside = product(backend)
        warned = sum("dtype is not supported" in str(warning.message) for warning in caught)
        caught.clear()
        with backend.autocast(backend.device_type, dtype=torch.float64, enabled=False):
            pass
        quiet = sum("dtype is not supported" in str(warning.message) for warning in caught)
    return {"warned": warned > 0, "product inside": inside, "warned where disabled": quiet > 0}


@program(
    Topic.ARGUMENTS,
    {"product in a float32 region inside a low one": "float32"},
    source="a region of dtype float32 is an island of float32: pytorch issue 100565",
)
def float32_region(backend: Backend) -> Seen:
    with backend.region(), backend.autocast(backend.device_type, dtype=torch.float32):
        return {"product in a float32 region inside a low one": product(backend)}
