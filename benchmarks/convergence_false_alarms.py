"""Run the checks of the convergence family on healthy training, over and over with fresh seeds: how often do they fail?

Usage::

    python benchmarks/convergence_false_alarms.py [--repeats 200] [--first-seed 1000] [--backend ID ...] [--task ID ...]
        [--out FILE.json]

A repeat is every check on one task on one backend, with seeds that no other repeat of that task has; tasks and backends
take turns. Prints the count of repeats with a failed finding, and its upper bound at 95 %; exits 1 if there is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from amp_checks import backends, families
from amp_checks.core import Status
from amp_checks.families.convergence import checks
from amp_checks.families.convergence.cases import CASES
from amp_checks.suite.measure import measure

DEFAULT = ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")


def upper_bound(alarms: int, repeats: int) -> float:
    """The rate above which so few alarms would have a chance below 5 % (Clopper-Pearson, one-sided, by bisection)."""
    from math import comb

    def chance(rate: float) -> float:
        return sum(comb(repeats, k) * rate**k * (1 - rate) ** (repeats - k) for k in range(alarms + 1))

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > 0.05 else (low, middle)
    return high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1000, help="at least 1000: the gate's own are below")
    parser.add_argument("--backend", action="append", choices=backends.IDS)
    parser.add_argument("--task", action="append", choices=[case.id for case in CASES if not case.full])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runnable = [
        (case, backend)
        for case, backend in itertools.product(CASES, map(backends.backend, options.backend or DEFAULT))
        if not case.full
        and case.id != "as_published"
        and (not options.task or case.id in options.task)
        and measure(checks.check_learns, case, backend).status is Status.PASSED
    ]
    rows: list[dict[str, Any]] = []
    for number in range(options.repeats):
        case, backend = runnable[number % len(runnable)]
        fresh = dataclasses.replace(case, first_seed=options.first_seed + 10 * (number // len(runnable)))
        results = [measure(check, fresh, backend) for check in families.checks_for(fresh)]
        failed = [f"{r.check}: {f.describe()}" for r in results for f in r.failures]
        failed += [r.message for r in results if r.status is Status.ERROR]
        rows.append({"task": case.id, "backend": backend.id, "first_seed": fresh.first_seed, "failed": failed})
        print(number + 1, rows[-1], file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps({"torch": torch.__version__, "repeats": rows}, indent=1) + "\n")
    alarms = sum(bool(row["failed"]) for row in rows)
    print(f"{alarms} false alarms in {len(rows)} repeats: at most {upper_bound(alarms, len(rows)):.2%} at 95 %")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
