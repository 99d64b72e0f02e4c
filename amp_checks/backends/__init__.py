"""The table of backends: the one place to add a device.

A row of `_TABLE` says what a backend is; `why_unavailable` says why this machine cannot run it. No torch is imported
before a backend is asked whether it is available.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from amp_checks.core import DEVICE_TYPES, LOW_DTYPES, unknown
from amp_checks.torch_api.backend import Backend

REAL = ("cuda", "cpu")


def _emulate(device_type: str, numerics: str) -> AbstractContextManager[Any]:
    from amp_checks.emulation import emulate

    return emulate(device_type, numerics=numerics)  # type: ignore[arg-type]


def _real(device_type: str, dtype: str) -> Backend:
    return Backend(id=f"{device_type}-{dtype}", device_type=device_type, dtype=dtype)


def emulated(device_type: str, dtype: str, *, numerics: str = "native") -> Backend:
    """An emulated backend; ``numerics`` as for `amp_checks.emulation.emulate`."""
    return Backend(
        id=f"emulated-{device_type}-{dtype}",
        device_type=device_type,
        dtype=dtype,
        emulated=True,
        numerics=numerics,
        activate=functools.partial(_emulate, device_type, numerics),
    )


def in_float32(backend: Backend) -> Backend:
    """An emulated backend with float32 inside, for speed; one that is not emulated, or active already, as it is."""
    if not backend.emulated or backend.numerics != "native":
        return backend
    from amp_checks.emulation.region import current

    if current() is not None:
        return backend
    activate = functools.partial(_emulate, backend.device_type, "float32")
    return dataclasses.replace(backend, numerics="float32", activate=activate)


_TABLE: dict[str, Backend] = {
    backend.id: backend
    for backend in (
        *(_real(device, dtype) for device in REAL for dtype in LOW_DTYPES),
        *(emulated(device, dtype) for device in DEVICE_TYPES if device != "cpu" for dtype in LOW_DTYPES),
    )
}

IDS: tuple[str, ...] = tuple(_TABLE)


def backend(backend_id: str) -> Backend:
    """The backend of that id, available here or not.

    Raises:
        UsageError: no such backend; names those that exist.
    """
    if backend_id not in _TABLE:
        raise unknown("backend", backend_id, IDS)
    return _TABLE[backend_id]


@functools.cache
def why_unavailable(backend_id: str) -> str | None:
    """Why this machine cannot run the backend, as one sentence, or None where it can.

    Asking about a cuda backend initialises CUDA in this process only as far as `torch.cuda.is_available` does.
    """
    asked = backend(backend_id)
    if asked.emulated or asked.device_type == "cpu":
        return None
    return _why_no_cuda(asked.dtype)


def _why_no_cuda(dtype: str) -> str | None:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    try:
        if not torch.cuda.is_available():
            return "no usable CUDA device: torch.cuda.is_available() is False"
        torch.zeros(1, device="cuda").add_(1).item()
    except (RuntimeError, AssertionError, OSError) as error:
        return f"the CUDA device does not start: {str(error).splitlines()[0]}"
    if dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return f"{torch.cuda.get_device_name()} has no native bfloat16"
    return None


def default_ids(*, require_cuda: bool = False, why: Callable[[str], str | None] | None = None) -> tuple[str, ...]:
    """The backends of a run that names none: of cuda what the device can run; without a device cpu and emulated-cuda.

    A GPU without native bfloat16 is thus checked in float16 alone, which a run says; to ask for both, name both.

    Args:
        require_cuda: never fall back; where no device can be had, all of cuda is asked for, to be refused with reasons.
        why: in place of `why_unavailable`, for a process that may not ask the device itself.
    """
    why = why or why_unavailable
    cuda = tuple(f"cuda-{dtype}" for dtype in LOW_DTYPES)
    if usable := tuple(name for name in cuda if why(name) is None):
        return usable
    if require_cuda:
        return cuda
    return tuple(f"{kind}-{dtype}" for kind in ("cpu", "emulated-cuda") for dtype in LOW_DTYPES)


def resolve(backend_ids: Sequence[str]) -> tuple[Backend, ...]:
    """The backends of those ids, in the order of the table, or the default ones where none is named.

    Raises:
        UsageError: an id is unknown.
    """
    wanted = {backend(name).id for name in backend_ids} or set(default_ids())
    return tuple(found for name, found in _TABLE.items() if name in wanted)


def one_per_device_type() -> tuple[Backend, ...]:
    """One float16 backend per device type with autocast rules: the device where it is there, else its emulation."""

    def one(device: str) -> Backend:
        real = f"{device}-float16"
        return backend(real if device in REAL and why_unavailable(real) is None else f"emulated-{real}")

    return tuple(one(device) for device in DEVICE_TYPES)
