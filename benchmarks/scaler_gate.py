"""Time of the scaler family's part of a pull-request gate: ``python benchmarks/scaler_gate.py [BACKEND...]``.

CPU seconds of this process are what a budget can be held to on a shared machine; wall time is printed beside them.
Each backend's items are run once to import what they import, and then timed.
"""

from __future__ import annotations

import collections
import sys
import time

import torch

from amp_checks import backends
from amp_checks.suite import collect


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    total = 0.0
    for name in names or list(backends.default_ids()):
        items = collect.collect(backends=[backends.backend(name)], families=["scaler"])
        for item in items:
            item.run()
        began, cpu = time.perf_counter(), time.process_time()
        results = [item.run() for item in items]
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        total += cpu
        statuses = collections.Counter(str(result.status) for result in results)
        counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
        print(f"{name}: {len(items)} items ({counts}): {cpu:.1f} s of CPU, {wall:.1f} s of wall time")
    print(f"torch {torch.__version__}: {total:.1f} s of CPU; budget: 60 s (30 s of wall time with two workers)")


if __name__ == "__main__":
    main(sys.argv[1:])
