"""Devices and dtypes that have no autocast: where a region refuses, where it warns and stays off, and in what words."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from amp_checks.core import DEVICE_TYPES, recorded_warnings
from amp_checks.families.ops.regions.program import Seen, Topic, outcome, program, texts, value
from amp_checks.torch_api import private_regions
from amp_checks.torch_api.backend import Backend

SOURCE = "torch.amp documentation, and the texts of its errors and warnings"


@program(
    Topic.ARGUMENTS,
    {"devices with autocast": ", ".join(DEVICE_TYPES), "meta": False},
    source="torch.amp.is_autocast_available documentation",
)
def available(_: Backend) -> Seen:
    ask = torch.amp.is_autocast_available
    return {
        "devices with autocast": value(lambda: ", ".join(name for name in DEVICE_TYPES if ask(name))),
        "meta": value(lambda: ask("meta")),
    }


@program(
    Topic.ARGUMENTS,
    {
        "a device without autocast": "RuntimeError: User specified an unsupported autocast device_type 'meta'",
        "a device object": "ValueError: Expected `device_type` of type `str`, got: `<class 'torch.device'>`",
        "of custom_fwd": "ValueError: Expected `device_type` of type `str`, got: `<class 'torch.device'>`",
        "of custom_bwd": "ValueError: Expected `device_type` of type `str`, got: `<class 'torch.device'>`",
        "this device": "no exception",
        "this device, of custom_fwd": "no exception",
        "this device, of custom_bwd": "no exception",
    },
    source=SOURCE,
)
def refused_devices(backend: Backend) -> Seen:
    autocast: Any = backend.autocast
    device: Any = torch.device(backend.device_type)
    return {
        "a device without autocast": outcome(lambda: autocast("meta", dtype=backend.low_dtype)),
        "a device object": outcome(lambda: autocast(device)),
        "of custom_fwd": outcome(lambda: torch.amp.custom_fwd(device_type=device)),
        "of custom_bwd": outcome(lambda: torch.amp.custom_bwd(device_type=device)),
        "this device": outcome(lambda: autocast(backend.device_type)),
        "this device, of custom_fwd": outcome(lambda: torch.amp.custom_fwd(device_type=backend.device_type)),
        "this device, of custom_bwd": outcome(lambda: torch.amp.custom_bwd(device_type=backend.device_type)),
    }


_REFUSED = (
    "UserWarning: In DEVICE autocast, but the target dtype is not supported. Disabling autocast.\n"
    "DEVICE Autocast only supports dtypes of torch.bfloat16, torch.float16 currently."
)


def _made(region: Callable[[], Any], backend: Backend, device_type: str = "") -> tuple[str, bool]:
    """The warnings of making a region, and whether autocast is on inside it."""
    device = device_type or backend.device_type
    with recorded_warnings() as caught, region():
        enabled = torch.is_autocast_enabled(device)
    return texts(caught, caller=region), enabled


@program(
    Topic.ARGUMENTS,
    {
        "float64": _REFUSED,
        "float32": _REFUSED,
        "int32": _REFUSED,
        "on inside": "False, False, False",
        "bfloat16 and float16": ", ",
        "on inside those": "True, True",
        "float64, disabled": "",
    },
    source=SOURCE,
    devices=("cpu", "xpu", "mps", "mtia", "maia"),
)
def refused_dtypes(backend: Backend) -> Seen:
    device = backend.device_type

    def made(*names: str, **options: Any) -> tuple[str, str]:
        found = [_made(lambda: torch.autocast(device, getattr(torch, name), **options), backend) for name in names]  # noqa: B023
        return ", ".join(text.replace(device.upper(), "DEVICE") for text, _ in found), ", ".join(
            str(enabled) for _, enabled in found
        )

    refused = [made(name) for name in ("float64", "float32", "int32")]
    taken = made("bfloat16", "float16")
    return {
        **{name: text for name, (text, _) in zip(("float64", "float32", "int32"), refused, strict=True)},
        "on inside": ", ".join(enabled for _, enabled in refused),
        "bfloat16 and float16": taken[0],
        "on inside those": taken[1],
        "float64, disabled": made("float64", enabled=False)[0],
    }


@program(
    Topic.ARGUMENTS,
    {
        "warning": "UserWarning: CUDA is not available or torch_xla is imported. Disabling autocast.",
        "on inside": False,
        "warning where disabled": "",
    },
    source=SOURCE,
    devices=("cpu",),
    machine="has-no-cuda",
)
def cuda_not_there(backend: Backend) -> Seen:
    text, enabled = _made(lambda: torch.autocast("cuda"), backend, "cuda")
    quiet, _ = _made(lambda: torch.autocast("cuda", enabled=False), backend, "cuda")
    return {"warning": text, "on inside": enabled, "warning where disabled": quiet}


@program(
    Topic.ARGUMENTS,
    {
        "bfloat16": "RuntimeError: Current CUDA Device does not support bfloat16. Please switch dtype to float16.",
        "bfloat16, disabled": "no exception",
        "float16": "no exception",
    },
    source=SOURCE,
    devices=("cuda",),
)
def bfloat16_not_there(backend: Backend) -> Seen:
    with mock.patch.object(torch.cuda, "is_bf16_supported", return_value=False):
        return {
            "bfloat16": outcome(lambda: backend.autocast("cuda", dtype=torch.bfloat16)),
            "bfloat16, disabled": outcome(lambda: backend.autocast("cuda", dtype=torch.bfloat16, enabled=False)),
            "float16": outcome(lambda: backend.autocast("cuda", dtype=torch.float16)),
        }


_MISSING = (
    "AssertionError: Tried to use AMP with the `BACKEND` backend, but the backend has not registered a module or the "
    "module misses some necessary funcs. The backend should register a module by `torch._register_device_module`, and "
    "the module must have these funcs: \n`get_amp_supported_dtype() -> List[torch.dtype]`. \n"
)


@program(
    Topic.ARGUMENTS,
    {
        "no module": _MISSING,
        "a module without the function": f"{_MISSING}But the func `get_amp_supported_dtype` is missing. \n",
        "a dtype that it has": "",
        "on inside": True,
        "a dtype that it lacks": (
            "UserWarning: In BACKEND autocast, but the target dtype is not supported. Disabling autocast.\n"
            "BACKEND Autocast only supports dtypes of torch.float32 currently."
        ),
        "on inside that": False,
    },
    source="torch.utils.rename_privateuse1_backend documentation: a module says which dtypes AMP may have",
)
def devices_of_others(backend: Backend) -> Seen:
    name = private_regions.private_backend()

    def named_backend(text: str) -> str:
        text = text.replace(name, "BACKEND").replace("or  the module", "or the module")
        return text.replace("module miss some", "module misses some")  # as torch 2.14 has it

    def refusal() -> str:
        try:
            torch.autocast(name, dtype=torch.float32)
        except AssertionError as error:
            return named_backend(f"AssertionError: {error}")
        return "no exception"

    seen: Seen = {}
    with mock.patch.object(torch, name, None, create=True):
        delattr(torch, name)
        seen["no module"] = value(refusal)
        setattr(torch, name, types.SimpleNamespace())
        seen["a module without the function"] = value(refusal)
        setattr(torch, name, types.SimpleNamespace(get_amp_supported_dtype=lambda: [torch.float32]))
        for dtype, subject, inside in (
            (torch.float32, "a dtype that it has", "on inside"),
            (torch.float16, "a dtype that it lacks", "on inside that"),
        ):
            found: list[Any] = []
            raised = outcome(
                lambda dtype=dtype, found=found: found.extend(  # type: ignore[misc]
                    _made(lambda: torch.autocast(name, dtype=dtype), backend, name)
                )
            )
            seen[subject], seen[inside] = (named_backend(found[0]), found[1]) if found else (raised, raised)
    return seen


@program(
    Topic.ARGUMENTS,
    {
        "around a number": (
            "TypeError: autocast()(func) requires a callable, but got int. Did you mean to use autocast as a context "
            "manager? For example:\n    with torch.autocast(device_type=...):\n        output = model(input)"
        )
    },
    source=SOURCE,
)
def around_no_function(backend: Backend) -> Seen:
    region: Any = backend.region()
    try:
        region(3)
    except TypeError as error:
        return {"around a number": f"TypeError: {error}"}
    return {"around a number": "no exception"}
