"""What AMP costs and saves in training: step time, bytes kept for backward, casts; FP32 against AMP.

Usage::

    python benchmarks/convergence_cost.py [--backend ID ...] [--picture PICTURE.png]

Bytes and casts are exact counts of one forward pass, on any backend. Step times are of this machine's own kernels and
are given for real backends only; on a CPU they say nothing of a GPU, where no time was measured. The picture needs
matplotlib.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from amp_checks import backends
from amp_checks.backends.observe import observe
from amp_checks.reference import digits, language, loop
from amp_checks.reference.loop import Learner, Precision, Turn, Validation
from amp_checks.reference.memory import bytes_for_backward
from amp_checks.torch_api.backend import Backend

DEFAULT = ("cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")
ROUNDS = 5


class Shape(NamedTuple):
    """A model of a size: what is varied, its value, and how it is built."""

    model: str
    varied: str
    value: int
    build: Callable[[str], Learner]


def transformer(device: str, *, width: int = 64, depth: int = 2, batch: int = 16) -> Learner:
    net = language.Transformer(64, width=width, depth=depth, heads=4).to(device)
    x = torch.randint(64, (batch, language.LENGTH)).to(device)
    return _learner(net, lambda: functional.cross_entropy(net(x).flatten(0, 1), x.flatten()))


def cnn(device: str, *, width: int = 16, depth: int = 2, batch: int = 32) -> Learner:
    layers: list[nn.Module] = []
    channels = 3
    for _ in range(depth):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).to(device)
    x, labels = torch.randn(batch, 3, 16, 16).to(device), torch.randint(10, (batch,)).to(device)
    return _learner(net, lambda: functional.cross_entropy(net(x), labels))


def _learner(net: nn.Module, loss: Callable[[], torch.Tensor]) -> Learner:
    turn = Turn(optimizer=torch.optim.SGD(net.parameters(), lr=1e-3), loss=lambda _step, _micro: loss())
    return Learner(model=net, turns=(turn,), validate=lambda: Validation(loss=0.0, metric=0.0))


def shapes() -> list[Shape]:
    tasks = (digits.MLP, digits.CNN, digits.GAN, language.TRANSFORMER)
    found = [Shape(task.id, "task", 0, task.build) for task in tasks]
    for name, build, sizes in (
        ("transformer", transformer, {"width": (32, 64, 128), "depth": (1, 2, 4), "batch": (4, 16, 64)}),
        ("cnn", cnn, {"width": (8, 16, 32), "depth": (1, 2, 4), "batch": (8, 32, 128)}),
    ):
        found += [
            Shape(name, varied, value, _sized(build, varied, value))
            for varied, values in sizes.items()
            for value in values
        ]
    return found


def _sized(build: Callable[..., Learner], varied: str, value: int) -> Callable[[str], Learner]:
    return lambda device: build(device, **{varied: value})


def casts(shape: Shape, precision: Precision, device: str) -> int:
    """Casts between floating dtypes in one forward pass."""
    torch.manual_seed(0)
    learner = shape.build(device)
    with observe() as calls, precision.region():
        for turn in learner.turns:
            turn.loss(0, 0)
    return sum(
        call.op in {"aten::_to_copy", "aten::to.dtype"} and call.input_dtypes[:1] != call.output_dtypes[:1]
        for call in calls
    )


def step_times(shape: Shape, precisions: list[Precision], device: str) -> list[float]:
    """Median milliseconds of a step in each precision, rounds interleaved."""
    steps = []
    for precision in precisions:
        torch.manual_seed(0)
        learner = shape.build(device)
        steps.append(functools.partial(_step, learner, precision, precision.scaler()))
    times: list[list[float]] = [[] for _ in steps]
    for number in range(ROUNDS + 1):
        for step, found in zip(steps, times, strict=True):
            began = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                found.append(1e3 * (time.perf_counter() - began))
    return [statistics.median(found) for found in times]


def _step(learner: Learner, precision: Precision, scaler: torch.amp.GradScaler) -> None:
    for turn in learner.turns:
        turn.optimizer.zero_grad()
        with precision.region():
            loss = turn.loss(0, 0)
        scaler.scale(loss).backward()
        scaler.step(turn.optimizer)
    scaler.update()


def row(shape: Shape, backend: Backend) -> tuple[str, float]:
    """A line of the table, and the share of bytes."""
    plain_device = "cpu" if backend.emulated else backend.device_type
    full, mixed = loop.fp32(plain_device), loop.amp(backend, scaled=backend.dtype == "float16")
    plain = bytes_for_backward(shape.build, precision=full, device=plain_device)
    with backend.activate():
        kept = bytes_for_backward(shape.build, precision=mixed, device=backend.device_type)
        made = casts(shape, mixed, backend.device_type)
    timed = "not measured"
    if not backend.emulated:
        before, after = step_times(shape, [full, mixed], backend.device_type)
        timed = f"{before:.1f} / {after:.1f}"
    size = "" if shape.varied == "task" else f"{shape.varied} {shape.value}"
    share = kept / plain
    return f"| {shape.model} | {size} | {backend.id} | {plain} | {kept} | {share:.3f} | {made} | {timed} |", share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=backends.IDS)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.backend or DEFAULT
    shares: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    print("| model | size | backend | bytes FP32 | bytes AMP | share | casts | step ms FP32 / AMP |")
    print("|---|---|---|---|---|---|---|---|")
    for shape in shapes():
        for name in names:
            line, share = row(shape, backends.backend(name))
            print(line, flush=True)
            if shape.varied != "task":
                shares.setdefault((shape.model, shape.varied, name), []).append((shape.value, share))
    print("\nNo step was timed on a GPU unless a cuda backend is in the table; emulated steps are not timed at all.")
    if options.picture:
        _draw(shares, options.picture)


def _draw(shares: dict[tuple[str, str, str], list[tuple[int, float]]], picture: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    panels = sorted({(model, varied) for model, varied, _ in shares})
    figure, grid = plt.subplots(2, (len(panels) + 1) // 2, sharey=True, squeeze=False, layout="constrained")
    for axes, (model, varied) in zip(grid.ravel(), panels, strict=False):
        for (of, by, name), points in shares.items():
            if (of, by) == (model, varied):
                axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_title(f"{model}, {varied}", fontsize=8)
        axes.axhline(0.5, color="0.7", lw=0.8)
    grid[0][0].legend(fontsize=6)
    figure.supylabel("bytes kept for backward, AMP over FP32")
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main()
