"""Times unchanged code again and again: how often does the verdict of ``amp-checks worth --time`` change?

Two linear layers with GELU between, of the widths given; each is timed ``--repeats`` times, and the verdicts counted.
"""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from amp_checks import backends
from amp_checks.audit.case import AuditCase
from amp_checks.worth.timing import ROUNDS, timed


def case(device: str, dtype: torch.dtype, *, width: int, rows: int) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()

    return {"model": model, "batches": [torch.randn(rows, width, device=device)], "step": step}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("widths", type=int, nargs="*", default=[64, 768])
    args = parser.parse_args()
    tried = [backends.backend(name) for name in args.backend or ["cpu-float16", "cpu-bfloat16"]]
    for width in args.widths:
        build = functools.partial(case, width=width, rows=args.rows)
        verdicts: dict[str, Counter[str]] = {one.dtype: Counter() for one in tried}
        speeds: dict[str, list[float]] = {one.dtype: [] for one in tried}
        for _ in range(args.repeats):
            found = timed(AuditCase(id=f"width-{width}", build=build), tried, machine="here", rounds=args.rounds)
            for speed in found.speeds:
                verdicts[speed.dtype][speed.verdict] += 1
                speeds[speed.dtype].append(speed.speedup)
        for dtype, counted in verdicts.items():
            low, high = min(speeds[dtype]), max(speeds[dtype])
            print(f"width {width}, {dtype}: {dict(counted)}, medians {low:.2f} to {high:.2f}", flush=True)


if __name__ == "__main__":
    main()
