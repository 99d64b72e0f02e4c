"""The global state that a check must leave as it found it, and one thread to run it on.

Each row of `_SWITCHES` names one piece of state with how to read and how to write it: the one place to add another.
"""

from __future__ import annotations

import functools
import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_checks.core import DEVICE_TYPES

Snapshot = dict[str, Any]
_Switch = tuple[Callable[[], Any], Callable[[Any], object]]


def _autocast_switches() -> dict[str, _Switch]:
    switches: dict[str, _Switch] = {}
    for device in DEVICE_TYPES:
        switches[f"autocast enabled for {device}"] = (
            functools.partial(torch.is_autocast_enabled, device),
            functools.partial(torch.set_autocast_enabled, device),
        )
        switches[f"autocast dtype for {device}"] = (
            functools.partial(torch.get_autocast_dtype, device),
            functools.partial(torch.set_autocast_dtype, device),
        )
    return switches


def _of_cudnn(name: str) -> _Switch:
    cudnn = torch.backends.cudnn
    return functools.partial(getattr, cudnn, name), functools.partial(setattr, cudnn, name)


def _set_nesting(depth: int) -> None:
    while (now := torch.autocast_increment_nesting()) - 1 < depth:
        pass
    while now > depth:
        now = torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _get_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _cuda_rng() -> Any:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None


def _set_cuda_rng(value: Any) -> None:
    if value is not None:
        torch.cuda.set_rng_state_all(value)


_AUTOCAST: dict[str, _Switch] = {
    **_autocast_switches(),
    "autocast nesting depth": (_get_nesting, _set_nesting),
    "autocast cache enabled": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
}
_SWITCHES: dict[str, _Switch] = {
    **_AUTOCAST,
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "CPU random state": (torch.get_rng_state, torch.set_rng_state),
    "CUDA random state": (_cuda_rng, _set_cuda_rng),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "TF32 in cuDNN": _of_cudnn("allow_tf32"),
    "cuDNN enabled": _of_cudnn("enabled"),
    "cuDNN benchmark": _of_cudnn("benchmark"),
    "cuDNN deterministic": _of_cudnn("deterministic"),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
}


_RANDOM = ("CPU random state", "CUDA random state")
_WITHOUT_RANDOM = {name: read for name, (read, _) in _SWITCHES.items() if name not in _RANDOM}


def capture() -> Snapshot:
    """Read every switch."""
    return {name: read() for name, (read, _) in _SWITCHES.items()}


def capture_switches() -> Snapshot:
    """Read every switch but the random states, which code may use up."""
    return {name: read() for name, read in _WITHOUT_RANDOM.items()}


def capture_autocast() -> Snapshot:
    """Read the switches of autocast."""
    return {name: read() for name, (read, _) in _AUTOCAST.items()}


def put_back(before: Snapshot) -> dict[str, tuple[Any, Any]]:
    """Put back what differs from ``before``; gives each switch that did, with its value then and now.

    A CUDA random state that appeared since (CUDA was started in between) is no difference.
    """
    changed = {}
    for name, then in before.items():
        read, write = _SWITCHES[name]
        now = read()
        if name == "CUDA random state" and then is None:
            continue
        if not _same(now, then):
            changed[name] = (then, now)
            write(then)
    return changed


def restore(before: Snapshot) -> list[str]:
    """As `put_back`, with one line per difference: ``"grad mode: True -> False"``."""
    changed = put_back(before)
    return [name if name in _RANDOM else f"{name}: {then} -> {now}" for name, (then, now) in changed.items()]


def _same(now: Any, then: Any) -> bool:
    if isinstance(now, torch.Tensor):
        return torch.equal(now, then)
    if isinstance(now, list):
        return len(now) == len(then) and all(map(torch.equal, now, then))
    return bool(now == then)


def release_memory(error: BaseException) -> None:
    """Give back what an item that ran out of memory still holds, so that the next ones do not run out for its sake.

    The frames of its exception hold its tensors, and the allocator of a device keeps what was freed.
    """
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels on one thread: bits of ``mm``, ``sum`` and seeded ``randn`` depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
