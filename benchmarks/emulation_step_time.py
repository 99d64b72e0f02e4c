"""Time of one emulated training step over the float32 step on the same CPU.

One thread, its CPU time, medians of interleaved runs:

    OMP_NUM_THREADS=1 python benchmarks/emulation_step_time.py [--rounds 9] [--models resnet18 ...] [--json FILE]

Each round runs the float32 step and every variant once, in turn, so that what else the machine does falls on all of
them. The emulated step holds forward and loss in a region, and a GradScaler.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from amp_checks.emulation import Numerics, emulate

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import networks


def square(out: Tensor) -> Tensor:
    """Mean square of the output, in float32."""
    return out.float().pow(2).mean()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What to time: a model, its input, its loss."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[[Tensor], Tensor] = square


MODELS = {
    "resnet18 2x3x64x64": Model(
        make=networks.resnet18, shape=(2, 3, 64, 64), loss=lambda out: F.cross_entropy(out, torch.tensor([1, 2]))
    ),
    "transformer4 8x64x128": Model(make=networks.transformer, shape=(8, 64, 128)),
    "transformer4 2x16x128": Model(make=networks.transformer, shape=(2, 16, 128)),
    "lstm 4x20x64": Model(make=networks.lstm, shape=(4, 20, 64)),
    "gru 4x20x64": Model(make=networks.gru, shape=(4, 20, 64)),
    "mlp 8x4": Model(make=networks.mlp, shape=(8, 4)),
}

MODES: tuple[Numerics, ...] = ("native", "float32")
VARIANTS = [(numerics, dtype) for numerics in MODES for dtype in ("float16", "bfloat16")]


Step = tuple[str, Callable[[], AbstractContextManager[None]], Callable[[], None]]


def steps(model: Model) -> Iterator[Step]:
    """The float32 step and each emulated one: name, region (entered once for a whole program, so not timed), step."""
    torch.manual_seed(0)
    net = model.make()
    batch = torch.randn(model.shape)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)

    def float32() -> None:
        optimizer.zero_grad()
        model.loss(net(batch)).backward()
        optimizer.step()

    def emulated(dtype: str) -> None:
        scaler = scalers.setdefault(dtype, torch.amp.GradScaler("cuda", init_scale=256.0))
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=getattr(torch, dtype)):
            loss = model.loss(net(batch))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    scalers: dict[str, torch.amp.GradScaler] = {}
    yield "float32", nullcontext, float32
    for numerics, dtype in VARIANTS:
        yield f"{numerics} {dtype}", partial(emulate, "cuda", numerics=numerics), partial(emulated, dtype)


def step_times(model: Model, rounds: int) -> dict[str, float]:
    """Median seconds of each step."""
    named = list(steps(model))
    times: dict[str, list[float]] = {name: [] for name, _, _ in named}
    for turn in range(rounds + 1):
        for name, region, step in named:
            with region():
                step()  # plans are made anew in each region
                began = time.thread_time()
                step()
                if turn:  # the first round warms up
                    times[name].append(time.thread_time() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def unlisted_overhead(calls: int = 2000, rounds: int = 9) -> dict[str, float]:
    """Microseconds that emulation adds to one call of an op without a rule, inside a region."""
    tensor = torch.randn(4, 4)
    found = {}
    calls_by_name: dict[str, Callable[[], Any]] = {
        "torch.relu": lambda: torch.relu(tensor),
        "F.relu": lambda: F.relu(tensor),
        "tensor + tensor": lambda: tensor + tensor,
        "tensor.reshape": lambda: tensor.reshape(16),
        "tensor.shape": lambda: tensor.shape,
    }
    for name, call in calls_by_name.items():
        plain, inside = [], []
        for _ in range(rounds):
            plain.append(_per_call(call, calls))
            with emulate("cuda"), torch.autocast("cuda", dtype=torch.float16):
                call()
                inside.append(_per_call(call, calls))
        found[name] = (statistics.median(inside) - statistics.median(plain)) * 1e6
    return found


def _per_call(call: Callable[[], Any], calls: int) -> float:
    began = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - began) / calls


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread, and no denormals: they make the float32 step itself several times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", nargs="*", default=[], help="parts of names")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"torch": torch.__version__, "rounds": options.rounds, "models": {}}
    with one_thread():
        for name, model in MODELS.items():
            if options.models and not any(part in name for part in options.models):
                continue
            times = step_times(model, options.rounds)
            base = times.pop("float32")
            ratios = {variant: round(seconds / base, 2) for variant, seconds in times.items()}
            result["models"][name] = {"float32 ms": round(base * 1e3, 2), "times the float32 step": ratios}
            print(f"{name}: float32 {base * 1e3:.2f} ms; " + ", ".join(f"{k} {v:.2f}x" for k, v in ratios.items()))
        result["us per unlisted op"] = {name: round(us, 2) for name, us in unlisted_overhead().items()}
        print("added to an op without a rule, us:", result["us per unlisted op"])
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
