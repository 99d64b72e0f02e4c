"""Record which ops run in 16 bits under the running torch: by running, where the device is here, else as declared.

Usage, under the torch to record, on one thread (it needs ``expecttest``; about two minutes)::

    OMP_NUM_THREADS=1 python benchmarks/record_low_precision_support.py fixtures/low_precision_support
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from amp_checks import backends
from amp_checks.families.fp32_only import sweep
from amp_checks.records import low_precision


def main(folder: str) -> None:
    found = {device: sweep.run_here(device) for device in reversed(backends.REAL)}
    cpu = found["cpu"]
    document = {
        "source": "torch.testing._internal.common_methods_invocations.op_db: its samples, run, and supported_dtypes",
        "command": "python benchmarks/record_low_precision_support.py fixtures/low_precision_support",
        "torch": cpu.torch,
        "machine": cpu.machine,
        "devices": {
            device: {
                "ran": each.ran,
                "looked_at": each.looked_at,
                "ops": {
                    dtype: {op: low_precision.to_json(seen) for op, seen in sorted(ops.items())}
                    for dtype, ops in each.ops.items()
                },
            }
            for device, each in found.items()
        },
    }
    path = Path(folder) / f"torch-{cpu.torch}.json"
    path.parent.mkdir(exist_ok=True)
    # One op a line: a change of torch shows as a change of lines.
    path.write_text(_lines(document), encoding="utf-8")
    print(f"{path}: {', '.join(f'{device} {each.looked_at} ops' for device, each in found.items())}")


def _lines(value: object, depth: int = 0) -> str:
    """JSON with the records of ops on one line each, and everything above them indented."""
    if not isinstance(value, dict) or "meets" in value:
        return json.dumps(value)
    pad = " " * (depth + 1)
    inner = ",\n".join(f"{pad}{json.dumps(name)}: {_lines(each, depth + 1)}" for name, each in value.items())
    return f"{{\n{inner}\n{' ' * depth}}}" + ("" if depth else "\n")


if __name__ == "__main__":
    main(sys.argv[1])
