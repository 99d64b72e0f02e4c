"""What `amp-checks watch` costs: a step of training watched at default sampling, over the same step unwatched.

A 4-layer transformer (8x64x128) and a residual CNN of 18 layers (8x3x64x64), bfloat16 on the CPU, one thread.
Rounds of unwatched and watched steps alternate in one process, each as long as two samples; every step is timed, in
CPU time of the process. A watched step is a sampled one, the one after it, which reads and judges, or another; the
cost of a cycle is the sum of its steps, each kind at the lower quartile of its times, which other programs on the
machine move least. The medians give the second figure. Exits 1 where the first is over the limit.

    python benchmarks/watch_overhead.py [--model NAME]... [--rounds N] [--every N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import audit_overhead  # type: ignore[import-not-found]  # beside this file
import torch
from torch import nn

from amp_checks.monitor import watch
from amp_checks.monitor.recorder import EVERY

LIMIT = 1.02
BATCH = {"cnn": (8, 3, 64, 64), "transformer": (8, 64, 128)}


def stepper(name: str) -> Callable[[], None]:
    """One step of training a model."""
    torch.manual_seed(0)
    model, _, _ = audit_overhead.MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    inputs, targets = torch.randn(BATCH[name]), torch.arange(8)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs)
        nn.functional.cross_entropy(output.float(), targets).backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], count: int) -> list[float]:
    """Seconds of CPU of this process, of each of so many steps."""
    found = []
    for _ in range(count):
        began = time.process_time()
        step()
        found.append(time.process_time() - began)
    return found


def times(name: str, *, rounds: int, every: int) -> tuple[list[float], list[list[float]]]:
    """Of unwatched steps, and of watched ones by their place in a cycle: the sampled one is the first."""
    step, count = stepper(name), 2 * every
    plain: list[float] = []
    watched: list[list[float]] = [[], [], []]
    with tempfile.TemporaryDirectory() as folder:
        timed(step, every)  # warms up
        for number in range(2 * rounds):
            if number % 2:
                plain += timed(step, count)
                continue
            with watch(Path(folder) / "record.jsonl", every=every):
                timed(step, every)  # what is paid once a run, the names of modules, is paid here
                for place, took in enumerate(timed(step, count)):
                    watched[min(place % every, 2)].append(took)
    return plain, watched


def ratio(plain: list[float], watched: list[list[float]], *, every: int, quartile: int) -> float:
    """A watched cycle over an unwatched one, each kind of step at that quartile of its times."""
    sampled, after, other = (statistics.quantiles(kind, n=4)[quartile] for kind in watched)
    return (sampled + after + (every - 2) * other) / (every * statistics.quantiles(plain, n=4)[quartile])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--every", type=int, default=EVERY)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, one sample in {args.every} steps, {args.rounds} rounds\n"
    )
    print("| model | step, ms | sampled step, ms | watched over unwatched | by medians |")
    print("|---|---|---|---|---|")
    over = False
    for name in args.model or BATCH:
        plain, watched = times(name, rounds=args.rounds, every=args.every)
        low, middle = (ratio(plain, watched, every=args.every, quartile=quartile) for quartile in (0, 1))
        over |= low > LIMIT
        steps = [1e3 * statistics.quantiles(kind, n=4)[0] for kind in (plain, watched[0])]
        print(f"| {name} | {steps[0]:.1f} | {steps[1]:.1f} | {low:.4f} | {middle:.4f} |", flush=True)
    print(f"\nlimit: {LIMIT:g}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
