"""GPUs for parallel workers: which there are, one for each worker, and what a broken one looks like.

Nothing here imports torch or starts CUDA: the controller of a parallel run must hold no context on a GPU that may be
in exclusive-process mode, so it asks ``nvidia-smi``.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
SHARE = "AMP_CHECKS_DEVICE_SHARE"
USABLE = 0.9
"""Of a device's memory, what workers that share it divide: each holds a CUDA context besides, outside the allocator."""

_MIG = re.compile(r"^\s+MIG .*\(UUID:\s*(?P<uuid>MIG-[^)]+)\)")
_GPU = re.compile(r"^GPU (?P<index>\d+):")


def visible(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The devices that this process may use, as values for the variable that chooses among them.

    What the caller's ``CUDA_VISIBLE_DEVICES`` lists (indices, UUIDs or MIG instances, up to the first invalid one, as
    CUDA itself reads it), or the ``HIP_VISIBLE_DEVICES`` of ROCm; without either, what ``nvidia-smi`` lists: each MIG
    instance of a GPU that is split, else the GPU. Empty where there is none, or no ``nvidia-smi``: a caller on ROCm
    who wants several workers has to list the devices.
    """
    environment = dict(os.environ) if environment is None else environment
    if (variable := _variable(environment)) in environment:
        return _listed(environment[variable])
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse(done.stdout)


def _variable(environment: Mapping[str, str]) -> str:
    """The variable that lists devices: a torch built for ROCm calls itself cuda, and minds both."""
    return HIP if HIP in environment and VISIBLE not in environment else VISIBLE


def _listed(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if not (name.isdecimal() or name.startswith(("GPU-", "MIG-"))) or name in found:
            break
        found.append(name)
    return tuple(found)


def parse(listing: str) -> tuple[str, ...]:
    """The devices in the output of ``nvidia-smi -L``."""
    found: list[str] = []
    split = False
    for line in listing.splitlines():
        if gpu := _GPU.match(line):
            found.append(gpu["index"])
            split = False
        elif instance := _MIG.match(line):
            if not split:
                found.pop()  # a GPU that is split into instances is used through them alone
                split = True
            found.append(instance["uuid"])
    return tuple(found)


def assign(specs: MutableSequence[Any], devices: Sequence[str]) -> None:
    """Give each worker's execnet spec one device, round about, and its share of that device's memory.

    Both are written into the spec, not worked out from the worker's number: xdist starts the replacement of a
    crashed worker from the same spec, under a new number. Where the devices cannot be listed, all workers share.
    """
    import execnet

    variable = _variable(os.environ)
    for number, spec in enumerate(specs):
        given = {}
        if variable not in spec.env and devices:
            given[variable] = devices[number % len(devices)]
        place = number % len(devices) if devices else 0
        sharers = len(range(place, len(specs), len(devices) or 1))
        if sharers > 1:
            given[SHARE] = f"{USABLE / sharers:.3f}"
        if given:
            specs[number] = execnet.XSpec(
                "//".join([str(spec), *(f"env:{name}={value}" for name, value in given.items())])
            )


def share() -> float | None:
    """The part of the device's memory that is this worker's, where it shares the device with others; else None."""
    return float(os.environ[SHARE]) if SHARE in os.environ else None


@functools.cache
def bound_memory() -> None:
    """Hold this process to its share, so that an item of one worker takes nothing from those of another."""
    import torch

    if (part := share()) is not None:
        torch.cuda.set_per_process_memory_fraction(part)


def poisoned() -> str | None:
    """What CUDA says of this process's context, where it can no longer be used; None where it can.

    After a device-side assert or an illegal access every later call fails with the same error, so that items after the
    culprit would be blamed for it.
    """
    import torch

    if not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None
