"""What watching costs: one AMP step under the audit's watch, every op of it kept, over the same step unwatched.

Two models, a residual CNN (2x3x64x64) and a 4-layer transformer (8x64x128), one thread. Rounds of unwatched and watched
steps alternate; times are CPU times of the process, and the figure is the ratio of the medians. The FP32 and float64
reference runs are timed apart.

    python benchmarks/audit_overhead.py [--backend ID]... [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit.case import AuditCase, Training
from amp_checks.audit.runs.plan import AMP, FP32, FP64, Runs
from amp_checks.audit.watching import ops
from amp_checks.audit.watching.watch import Watch
from amp_checks.torch_api.backend import Backend

LIMIT = 2.5
STEPS = 4


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm2(self.second(self.norm1(self.first(x)).relu()))
        summed: torch.Tensor = out + self.short(x)
        return summed.relu()


def cnn() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A residual network of 18 layers."""
    widths = (
        (64, 64, 1),
        (64, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
        (128, 256, 2),
        (256, 256, 1),
        (256, 512, 2),
        (512, 512, 1),
    )
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    model = nn.Sequential(
        *stem, *(Block(*row) for row in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)
    )
    return model, torch.randn(2, 3, 64, 64), torch.tensor([1, 2])


def transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Four encoder layers."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Flatten(), nn.Linear(8192, 10)
    )
    return model, torch.randn(8, 64, 128), torch.arange(8)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]]] = {"cnn": cnn, "transformer": transformer}


def case(name: str) -> AuditCase:
    """A correct program around one of the models."""

    def build(device: str, dtype: torch.dtype) -> Training:
        model, inputs, targets = MODELS[name]()
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8, enabled=dtype is torch.float16)
        batch = (inputs.to(device), targets.to(device))

        def step(batch: Any) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = nn.functional.cross_entropy(model(batch[0]).float(), batch[1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, step=step, batches=[batch] * STEPS)

    return AuditCase(id=f"benchmark {name}", build=build)


def timed(function: Callable[[], object]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def measure(name: str, backend: Backend, rounds: int) -> tuple[float, float]:
    """Median seconds of an unwatched and of a watched step."""
    plain: list[float] = []
    watched: list[float] = []
    with backend.activate():
        training = case(name).training(backend)
        assert training.step is not None
        training.step(training.batches[0])
        for _ in range(rounds):
            plain += [timed(lambda: training.step(training.batches[0])) for _ in range(STEPS)]  # type: ignore[misc]
            watch = Watch()
            with watch.installed():
                fresh = case(name).training(backend)
                watch.know(fresh)

                def step(fresh: Training = fresh, watch: Watch = watch) -> None:
                    fresh.step(fresh.batches[0])  # type: ignore[misc]
                    watch.end_step()

                with watch.watching():
                    step()
                    watched += [timed(step) for _ in range(STEPS)]
                watch.close()
    return statistics.median(plain), statistics.median(watched)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ops.DETAILED_STEPS = 1 << 30
    wanted = args.backend or ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"]
    print(f"torch {torch.__version__}, one thread, {args.rounds} rounds of {STEPS} steps; limit {LIMIT}")
    for backend in backends.resolve(wanted):
        for name in MODELS:
            plain, watched = measure(name, backend, args.rounds)
            print(
                f"{backend.id:24} {name:12} {plain * 1e3:8.1f} ms  watched {watched * 1e3:8.1f} ms  "
                f"ratio {watched / plain:.2f}"
            )
    backend = backends.backend("cpu-bfloat16")
    for name in MODELS:
        for label, setup in (("FP32", FP32), ("float64", FP64)):
            runs = Runs(case(name), backend)
            runs.trace(AMP)
            seconds = timed(lambda runs=runs, setup=setup: runs.trace(setup))  # type: ignore[misc]
            print(f"reference {label:8} {name:12} {seconds / STEPS * 1e3:8.1f} ms a step, building included")


if __name__ == "__main__":
    main()
