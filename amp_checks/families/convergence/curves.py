"""Curves of the runs that `check_trains_like_fp32` compared, for reports: the runs are those that it kept."""

from __future__ import annotations

import math
import statistics
from typing import Any

from amp_checks.families.convergence.cases import ConvergenceCase
from amp_checks.families.convergence.checks import _amp, _fp32
from amp_checks.torch_api.backend import Backend

_DIGITS = 7


def curves(case: ConvergenceCase, backend: Backend) -> list[dict[str, Any]]:
    """Loss under AMP with the band of FP32 over the same seeds; loss scale and skipped steps of the first, where either
    moved. Entries as `amp_checks.report.curves` has them.
    """
    seeds = range(case.first_seed, case.first_seed + case.seeds)
    mixed = [_amp(case.task, backend, seed) for seed in seeds]
    full = [
        _fp32(case.task, backend, seed, leave_out=run.skips if case.most_skips else frozenset())
        for seed, run in zip(seeds, mixed, strict=True)
    ]
    by_step = list(zip(*(run.losses for run in full), strict=True))
    drawn: list[dict[str, Any]] = [
        {
            "title": f"{case.id}: training loss, mean of {case.seeds} seeds",
            "x": "step",
            "y": "training loss",
            "log": all(loss > 0.0 for losses in by_step for loss in losses),
            "lines": [
                {"name": backend.id, "values": [_mean(step) for step in zip(*(m.losses for m in mixed), strict=True)]}
            ],
            "band": {
                "name": f"FP32 over {case.seeds} seeds",
                "low": [_short(min(losses)) for losses in by_step],
                "high": [_short(max(losses)) for losses in by_step],
            },
        }
    ]
    first = mixed[0]
    if first.skips or len(set(first.scales)) > 1:
        drawn.append(
            {
                "title": f"{case.id}: loss scale, seed {case.first_seed}",
                "x": "step",
                "y": "loss scale",
                "log": min(first.scales) > 0.0,
                "lines": [{"name": backend.id, "values": list(first.scales)}],
                "marks": {"name": "skipped step", "at": sorted(first.skips)},
            }
        )
    return drawn


def _mean(losses: tuple[float, ...]) -> float:
    return _short(statistics.fmean(losses)) if all(map(math.isfinite, losses)) else math.nan


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
