"""Record the table of ranges of the torch that runs, on every default backend of a machine without a GPU.

    python benchmarks/ranges_record.py fixtures/ranges/torch-2.13.0.json

One line for each op and backend: low, high, what lies below, what lies above; low and high are null where no magnitude
is safe. Figures of emulated backends come from the CPU's kernels under the device's rules.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import torch

from amp_checks import backends
from amp_checks.cli import ranges
from amp_checks.families.ranges.cases import CASES
from amp_checks.report import ranges as report

BACKENDS = ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")


def main() -> None:
    """Measure every row and write the file."""
    torch.set_num_threads(1)
    lines, without = ranges.measured(CASES, [backends.backend(name) for name in BACKENDS])
    told: dict[tuple[str, str], dict[str, list[object]]] = {}
    for line in lines:
        ends = [None if end is None else float(f"{end:.5g}") for end in (line.low, line.high)]
        told.setdefault((line.op, line.backend), {})[line.direction] = [*ends, line.below, line.above]
    head = {
        "torch": torch.__version__,
        "cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "command": "python benchmarks/ranges_record.py",
        "fields": ["low", "high", "below", "above"],
        "not_measured": without,
    }
    rows = ",\n".join(
        f"  {json.dumps(f'{op} {backend}')}: {json.dumps(directions)}" for (op, backend), directions in told.items()
    )
    text = json.dumps(head, indent=1)[:-2] + f',\n "ranges": {{\n{rows}\n }}\n}}\n'
    json.loads(text)
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
    print(f"{len(lines)} ranges of {len(CASES)} rows, {len(without)} not measured; {report.CHECK} holds them")


if __name__ == "__main__":
    main()
