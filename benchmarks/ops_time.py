"""Time and findings per second of the ops family, one process, one thread.

    python benchmarks/ops_time.py [--full] [BACKEND...]

Processor time, not wall time: it means the same on a machine that others use. Compare with the budget of the gate: 60 s
with two workers over all six device types.
"""

from __future__ import annotations

import collections
import sys
import time

T0 = time.process_time()
import torch  # noqa: E402 - its import is one of the figures

IMPORT_TORCH = time.process_time() - T0

from amp_checks import backends, suite  # noqa: E402


def main() -> None:
    """Print the time of the import of torch, of collecting and of running, by check."""
    torch.set_num_threads(1)
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    chosen = backends.resolve(names or [name for name in backends.IDS if not name.startswith("cuda-")])
    began = time.process_time()
    items = suite.collect(backends=chosen, families=["ops"], full="--full" in sys.argv)
    collected = time.process_time() - began
    spent: dict[str, float] = collections.defaultdict(float)
    findings, statuses = 0, collections.Counter[str]()
    for item in items:
        began = time.process_time()
        result = item.run()
        spent[item.check.__name__] += time.process_time() - began
        findings += len(result.findings)
        statuses[str(result.status)] += 1
    total = sum(spent.values())
    print(f"import torch {IMPORT_TORCH:.1f} s, collect {collected:.1f} s")
    print(
        f"{len(items)} items, {findings} findings in {total:.1f} s: {findings / total:.0f} findings/s; {dict(statuses)}"
    )
    for name, seconds in sorted(spent.items(), key=lambda entry: -entry[1]):
        print(f"  {name:<42}{seconds:7.2f} s")


if __name__ == "__main__":
    main()
