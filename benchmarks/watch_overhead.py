"""What `amp-checks watch` costs: a step of training watched at default sampling, over the same step unwatched.

A 4-layer transformer (8x64x128) and a residual CNN of 18 layers (8x3x64x64), bfloat16 on the CPU, one thread. Rounds of
unwatched and watched steps alternate in one process, each round of as many steps as two samples take; a pair of rounds
gives one ratio, and the figure is the median of them, with the quartiles. Exits 1 where a median is over the limit.

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


def timed(step: Callable[[], None], count: int) -> float:
    """Seconds of CPU of this process."""
    began = time.process_time()
    for _ in range(count):
        step()
    return time.process_time() - began


def ratios(name: str, *, rounds: int, every: int) -> tuple[list[float], float]:
    """Watched over unwatched, of each pair of rounds; and milliseconds of an unwatched step."""
    step, count = stepper(name), 2 * every
    found, plain_times = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            parts: dict[str, float] = {}
            for kind in ("watched", "plain") if number % 2 else ("plain", "watched"):
                if kind == "watched":
                    with watch(Path(folder) / "record.jsonl", every=every):
                        # What is paid once a run, the names of modules, is paid before.
                        for _ in range(every):
                            step()
                        parts[kind] = timed(step, count)
                else:
                    parts[kind] = timed(step, count)
            if number:  # the first pair warms up
                found.append(parts["watched"] / parts["plain"])
                plain_times.append(parts["plain"] / count)
    return found, 1e3 * statistics.median(plain_times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--every", type=int, default=EVERY)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, one sample in {args.every} steps, {args.rounds} rounds\n"
    )
    print("| model | step, ms | watched over unwatched | quartiles |")
    print("|---|---|---|---|")
    over = False
    for name in args.model or BATCH:
        found, plain = ratios(name, rounds=args.rounds, every=args.every)
        low, middle, high = statistics.quantiles(found, n=4)
        over |= middle > LIMIT
        print(f"| {name} | {plain:.1f} | {middle:.4f} | {low:.4f} to {high:.4f} |", flush=True)
    print(f"\nlimit: {LIMIT:g}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
