"""What a verdict depends on: torch and its path, devices, driver, switches, threads, and what each backend can run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import amp_checks
from amp_checks import backends
from amp_checks.core import SuiteError

Environment = dict[str, Any]


def describe() -> Environment:
    """The environment of this process, as JSON values.

    Imports torch, and starts CUDA where there is a usable device; `describe_elsewhere` does so in another process.
    """
    import numpy as np
    import torch

    return {
        "amp_checks": amp_checks.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch_path": str(Path(torch.__file__).parent),
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "numpy": np.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "devices": _devices(),
        "driver": _driver(),
        "switches": {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
            "cudnn.deterministic": torch.backends.cudnn.deterministic,
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        },
        "threads": 1,
        "threads_of_machine": torch.get_num_threads(),
        "seeds": "CRC-32 of a name stated by each case; planted sample 0" + _salt(),
        "backends": {name: backends.why_unavailable(name) for name in backends.IDS},
    }


def _salt() -> str:
    from amp_checks.torch_api.numerics import SALT

    return f"; {SALT}={os.environ[SALT]} before each name" if SALT in os.environ else ""


def _devices() -> list[dict[str, Any]]:
    import torch

    if backends.why_unavailable("cuda-float16") is not None:
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _driver() -> str | None:
    """The driver's version as ``nvidia-smi`` gives it, or None without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def describe_elsewhere() -> Environment:
    """`describe` in another process: a controller of parallel workers starts no CUDA itself.

    Raises:
        SuiteError: that process failed, or said nothing readable; with the last line it wrote.
    """
    command = [sys.executable, "-m", "amp_checks.backends.environment"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    try:
        found: Environment = json.loads(done.stdout)
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SuiteError(f"torch cannot be loaded to describe the environment: {last}") from error
    return found


def lines(found: Environment) -> list[str]:
    """The environment for a person: the header of a run."""
    devices = [f"{device['name']} (capability {device['capability']})" for device in found["devices"]]
    switches = ", ".join(f"{name}={value}" for name, value in found["switches"].items())
    build = f"CUDA {found['torch_cuda']}" if found["torch_cuda"] else f"HIP {found['torch_hip']}"
    torch_build = build if found["torch_cuda"] or found["torch_hip"] else "built without CUDA"
    hardware = "; ".join(devices) or "no CUDA device"
    return [
        f"amp_checks {found['amp_checks']}, python {found['python']}, numpy {found['numpy']}, {found['platform']}",
        f"torch {found['torch']} ({torch_build}) from {found['torch_path']}",
        f"devices: {hardware}; driver {found['driver'] or 'none'}; CPU capability {found['cpu_capability']}",
        f"switches: {switches}",
        f"threads: {found['threads']} a worker (machine: {found['threads_of_machine']}); seeds: {found['seeds']}",
    ]


def backend_lines(found: Environment) -> list[str]:
    """One line per backend: available, or why not."""
    width = max(map(len, found["backends"]))
    written = []
    for name, reason in found["backends"].items():
        kind = ", emulated: the device's rules, this CPU's kernels" if name.startswith("emulated-") else ""
        written.append(f"{name:<{width}}  {f'available{kind}' if reason is None else f'not available: {reason}'}")
    return written


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe()))
