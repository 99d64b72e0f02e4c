"""Draw training under FP32 and AMP: losses (FP32 as a band over seeds, AMP as lines), loss scale, skipped steps.

Usage::

    python benchmarks/convergence_curves.py PICTURE.png [--backend ID ...] [--task ID ...] [--seeds 5]

Needs matplotlib. Also prints, for each task and backend: skipped steps, the last loss scale, the shares of gradients
flushed to zero at the first step with and without a scaled loss, and the steps that it took to reach the loss that FP32
reached half way.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib as mpl
import torch

from amp_checks import backends
from amp_checks.core import Raised
from amp_checks.families.convergence.cases import CASES, ConvergenceCase
from amp_checks.families.convergence.checks import survival
from amp_checks.reference import loop
from amp_checks.reference.loop import Trajectory
from amp_checks.torch_api.backend import Backend

mpl.use("agg")
from matplotlib import pyplot as plt

DEFAULT = ("emulated-cuda-float16", "emulated-cuda-bfloat16")
COLOURS = ("tab:red", "tab:blue", "tab:green", "tab:purple")


def under_amp(case: ConvergenceCase, backend: Backend, seeds: int) -> list[Trajectory]:
    with backend.activate():
        return [
            loop.train(case.task, precision=case.task.amp(backend), device=backend.device_type, seed=seed)
            for seed in range(seeds)
        ]


def flushed(case: ConvergenceCase, backend: Backend, full: Trajectory, *, scaled: bool) -> float:
    """Share of gradients flushed to zero at the first step."""
    precision = loop.amp(backend, scaled=scaled, scaler=dict(case.task.scaler))
    with backend.activate():
        run = loop.train(case.task, precision=precision, device=backend.device_type, seed=0)
    return survival(run.left_behind, full.left_behind, low=backend.low_dtype).flushed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--backend", action="append", choices=backends.IDS)
    parser.add_argument("--task", action="append", choices=[case.id for case in CASES if not case.full])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case for case in CASES if not case.full and (not options.task or case.id in options.task)]
    columns = math.ceil(math.sqrt(len(cases)))
    rows = math.ceil(len(cases) / columns)
    figure = plt.figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    grid = figure.subfigures(rows, columns, squeeze=False).ravel()
    print("| task | backend | skipped | last scale | flushed, scaled | flushed, not scaled | steps to half-way loss |")
    print("|---|---|---|---|---|---|---|")
    for panel, case in zip(grid, cases, strict=False):
        above, below = panel.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1)})
        full = [
            loop.train(case.task, precision=loop.fp32("cpu"), device="cpu", seed=seed) for seed in range(options.seeds)
        ]
        curves = torch.tensor([run.losses for run in full])
        steps = range(1, case.task.steps + 1)
        above.fill_between(steps, curves.amin(0), curves.amax(0), color="0.8", label="FP32, all seeds")
        half_way = full[0].losses[len(steps) // 2]
        for colour, name in zip(COLOURS, options.backend or DEFAULT, strict=False):
            backend = backends.backend(name)
            try:
                runs = under_amp(case, backend, options.seeds)
            except Raised as raised:
                print(f"| {case.id} | {name} | {raised.error.__class__.__name__} | | | | |", flush=True)
                continue
            for number, run in enumerate(runs):
                above.plot(steps, run.losses, color=colour, lw=0.6, label=None if number else name)
            below.step(steps, [max(scale, 1.0) for scale in runs[0].scales[1:]], color=colour, lw=1.0, where="post")
            skips = sorted(runs[0].skips)
            below.plot([step + 1 for step in skips], [runs[0].scales[step + 1] for step in skips], "x", color=colour)
            shares = [flushed(case, backend, full[0], scaled=scaled) for scaled in (True, False)]
            took = [run.steps_to(half_way) for run in (full[0], runs[0])]
            print(
                f"| {case.id} | {name} | {len(skips)} of {len(steps)} | {runs[0].scales[-1]:g} | {shares[0]:.4f} "
                f"| {shares[1]:.4f} | {took[1]} (FP32 {took[0]}) |",
                flush=True,
            )
        above.set_title(case.id, fontsize=9)
        above.set_yscale("log")
        below.set_yscale("log", base=2)
        below.set_ylabel("scale, x skipped", fontsize=7)
        above.set_ylabel("training loss", fontsize=7)
        above.legend(fontsize=6)
        for axes in (above, below):
            axes.tick_params(labelsize=6)
    figure.savefig(options.picture, dpi=80)


if __name__ == "__main__":
    main()
