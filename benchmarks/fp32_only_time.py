"""Time of the fp32-only family's part of a pull-request gate: ``python benchmarks/fp32_only_time.py [BACKEND...]``.

CPU seconds of this process are what a budget can be held to on a shared machine; wall time is printed beside them.
Each backend's items are run once to import what they import, and then timed; the five slowest are named.
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
    total = first = 0.0
    seconds: dict[str, float] = {}
    for name in names or list(backends.default_ids()):
        items = collect.collect(backends=[backends.backend(name)], families=["fp32-only"])
        cpu = time.process_time()
        for item in items:
            item.run()
        first += time.process_time() - cpu
        began, cpu = time.perf_counter(), time.process_time()
        results = [item.run() for item in items]
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        total += cpu
        seconds.update({result.id: result.seconds for result in results})
        told = ", ".join(
            f"{count} {status}"
            for status, count in collections.Counter(str(result.status) for result in results).most_common()
        )
        print(f"{name}: {len(items)} items ({told}): {cpu:.1f} s of CPU, {wall:.1f} s of wall time")
    for item_id, took in sorted(seconds.items(), key=lambda pair: -pair[1])[:5]:
        print(f"  {took * 1000:.0f} ms {item_id}")
    print(f"torch {torch.__version__}: {total:.1f} s of CPU, {first:.1f} s in the first round; budget: 45 s")


if __name__ == "__main__":
    main(sys.argv[1:])
