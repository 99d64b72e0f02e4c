"""Checkpointing: a recomputed block runs in the state of autocast in which it ran first."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from amp_checks.families.ops.regions.program import Seen, Topic, held, other_low, outcome, program, tensor
from amp_checks.torch_api.backend import Backend

SOURCE = "torch.utils.checkpoint restores the state of autocast when it recomputes"
_DEVICES = ("cuda", "cpu", "xpu", "mps", "mtia")


def _states(
    backend: Backend,
    forward: AbstractContextManager[Any],
    backward: AbstractContextManager[Any],
    *,
    reentrant: bool,
    device: str = "",
) -> str:
    """The switches of the backend's device in the block and in its recomputation; then those of the CPU."""
    seen: list[str] = []

    def block(value: torch.Tensor) -> torch.Tensor:
        states = [held(backend).partition(", depth")[0], held(backend, "cpu").partition(",")[0]]
        seen.append("; cpu ".join(states))
        return torch.tanh(value)

    x = tensor(backend, 4) if not device else torch.ones(4, device=device)

    def run() -> None:
        with forward:
            out = checkpoint(block, x.requires_grad_(), use_reentrant=reentrant)
        with backward:
            out.float().sum().backward()

    raised = outcome(run)
    if raised != "no exception":
        return raised
    return seen[1] if len(seen) == 2 else f"ran {len(seen)} times"


def _both(backend: Backend, subject: str, forward: Any, backward: Any, **options: Any) -> Seen:
    return {
        f"{subject}, {'reentrant' if reentrant else 'not reentrant'}": _states(
            backend, forward(), backward(), reentrant=reentrant, **options
        )
        for reentrant in (True, False)
    }


def _kinds(subject: str, expected: str) -> dict[str, str]:
    return {f"{subject}, {kind}": expected for kind in ("reentrant", "not reentrant")}


@program(
    Topic.GRADIENTS,
    {
        **_kinds("a region, then none", "on in low, cache off"),
        **_kinds("a region, then the other dtype", "on in low, cache off"),
        **_kinds("a disabled region, then a region", "off in low, cache on"),
    },
    source=SOURCE,
    devices=_DEVICES,
)
def recomputed_in_its_state(backend: Backend) -> Seen:
    def other() -> AbstractContextManager[Any]:
        return backend.autocast(backend.device_type, dtype=other_low(backend))

    seen = {
        **_both(backend, "a region, then none", lambda: backend.region(cache_enabled=False), nullcontext),
        **_both(backend, "a region, then the other dtype", lambda: backend.region(cache_enabled=False), other),
        **_both(
            backend,
            "a disabled region, then a region",
            lambda: backend.region(enabled=False),
            lambda: backend.autocast(backend.device_type, dtype=other_low(backend), cache_enabled=False),
        ),
    }
    return {subject: str(state).partition("; cpu")[0] for subject, state in seen.items()}


@program(
    Topic.GRADIENTS,
    {
        **_kinds("a region of the CPU alone, then none", "off; cpu on in low"),
        **_kinds("none, then a region of the CPU", "off; cpu off"),
    },
    source=SOURCE,
    devices=tuple(device for device in _DEVICES if device != "cpu"),
)
def recomputed_in_the_state_of_the_cpu(backend: Backend) -> Seen:
    def on_the_cpu() -> AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=backend.low_dtype)

    seen = {
        **_both(backend, "a region of the CPU alone, then none", on_the_cpu, nullcontext),
        **_both(backend, "none, then a region of the CPU", nullcontext, on_the_cpu),
    }
    return {subject: _without_dtype_of_what_is_off(str(state)) for subject, state in seen.items()}


def _without_dtype_of_what_is_off(state: str) -> str:
    device, _, cpu = state.partition("; cpu ")
    return f"{device.partition(' in ')[0] if device.startswith('off') else device}; cpu " + (
        "off" if cpu.startswith("off") else cpu
    )


@program(
    Topic.GRADIENTS,
    _kinds("on a device without autocast", "on in low"),
    source=SOURCE,
    devices=("cpu",),
)
def recomputed_where_there_is_no_autocast(backend: Backend) -> Seen:
    seen = _both(backend, "on a device without autocast", backend.region, nullcontext, device="meta")
    return {subject: str(state).rpartition("; cpu ")[2] for subject, state in seen.items()}
