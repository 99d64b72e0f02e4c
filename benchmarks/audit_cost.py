"""What a whole audit costs: of a healthy program, over the plain loop of the same iterations.

A residual CNN of 18 layers (8x3x64x64) and a 4-layer transformer (8x64x128), four steps each. Each figure comes from a
process of its own, imports apart: seconds of the wall clock and the peak of its memory. The plain loop is the same
program in float32, on one thread as the audit is. Prints a table; exits 1 where a ratio is over its limit.

    python benchmarks/audit_cost.py [--backend ID]... [--model NAME]... [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import audit_overhead  # type: ignore[import-not-found]  # beside this file
import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit.case import AuditCase, Training
from amp_checks.audit.report import audit

MOST_TIME, MOST_MEMORY = 25.0, 6.0
STEPS = 4
BATCH = {"cnn": (8, 3, 64, 64), "transformer": (8, 64, 128)}


def case(name: str) -> AuditCase:
    """A correct program around one of the models."""

    def build(device: str, dtype: torch.dtype) -> Training:
        model, _, _ = audit_overhead.MODELS[name]()
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8, enabled=dtype is torch.float16)
        batches = [(torch.randn(BATCH[name]).to(device), torch.arange(8).to(device)) for _ in range(STEPS)]

        def step(batch: Any) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
                loss = nn.functional.cross_entropy(model(batch[0]).float(), batch[1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, step=step, batches=batches)

    return AuditCase(id=f"benchmark {name}", build=build)


def once(name: str, backend: str) -> None:
    """Measure in this process, and print what it took: ``plain`` is no audit."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if backend == "plain":
        training = case(name).build(device="cpu", dtype=torch.float32)
        for batch in training.batches:
            training.step(batch)
    else:
        found = audit(case(name), backends.backend(backend)).diagnostics
        assert not found, found
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "MiB": (after - before) / 1024}))


def measured(name: str, backend: str, repeats: int) -> tuple[float, float]:
    """Medians of seconds and MiB."""
    rows = []
    for _ in range(repeats):
        command = [sys.executable, __file__, "--once", name, backend]
        rows.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return statistics.median(row["seconds"] for row in rows), statistics.median(row["MiB"] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--once", nargs=2, metavar=("MODEL", "BACKEND"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        once(*args.once)
        return 0
    print(f"torch {torch.__version__}, {STEPS} steps, medians of {args.repeats}\n")
    print("| program | backend | plain, s | audit, s | times | plain, MiB | audit, MiB | times |")
    print("|---|---|---|---|---|---|---|---|")
    over = False
    for name in args.model or audit_overhead.MODELS:
        plain, plain_memory = measured(name, "plain", args.repeats)
        for backend in args.backend or ["emulated-cuda-float16", "cpu-bfloat16"]:
            took, memory = measured(name, backend, args.repeats)
            over |= took > MOST_TIME * plain or memory > MOST_MEMORY * plain_memory
            print(
                f"| {name} | {backend} | {plain:.2f} | {took:.1f} | {took / plain:.1f} | {plain_memory:.0f} | "
                f"{memory:.0f} | {memory / plain_memory:.1f} |"
            )
    print(f"\nlimits: {MOST_TIME:g} times the time, {MOST_MEMORY:g} times the memory")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
