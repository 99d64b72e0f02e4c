"""Time and memory of a step where the device is real: FP32, AMP in float16 and in bfloat16, in rounds that alternate.

A round times each precision once, so that what changes on the machine meanwhile meets all of them. The speed of AMP is
the median of the rounds' ratios, with the interval that holds the median of such rounds in 99 of 100 cases; it pays, or
costs, where the whole interval lies beyond a margin; else it makes no difference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch.utils import benchmark

from amp_checks.audit.case import AuditCase, stepper
from amp_checks.audit.runs.disabled import AutocastOff, ScalerOff
from amp_checks.audit.watching.watch import Watch
from amp_checks.core import UsageError
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import seeded

ROUNDS = 31
MARGIN = 0.05
"""A speed-up whose interval reaches within 5 % of 1 is none: two measurements of one program differ by that."""
_LEAST_SECONDS = 0.025
"""Of one measurement in a round: so many steps are made in it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """AMP in one dtype beside FP32.

    Attributes:
        dtype: ``float16`` or ``bfloat16``.
        seconds, fp32_seconds: medians of a step.
        speedup: median over the rounds of FP32's time over AMP's.
        low, high: its interval at 99 %.
        memory: peak bytes of the allocator over those of FP32; None where the device's allocator does not count.
    """

    dtype: str
    seconds: float
    fp32_seconds: float
    speedup: float
    low: float
    high: float
    memory: float | None = None

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, or ``no difference`` beyond the margin."""
        if self.low > 1 + MARGIN:
            return "faster"
        if self.high < 1 / (1 + MARGIN):
            return "slower"
        return "no difference"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What was measured, with the baseline that it is compared with."""

    machine: str
    torch: str
    baseline: str
    rounds: int
    speeds: tuple[Speed, ...]

    def lines(self) -> list[str]:
        """For a terminal."""
        head = f"timed on {self.machine}, torch {self.torch}, {self.rounds} rounds; FP32 baseline: {self.baseline}"
        return [head] + [
            f"  AMP {one.dtype}: {one.verdict}: {one.speedup:.2f}x ({one.low:.2f} to {one.high:.2f}), "
            f"{one.seconds * 1e3:.3g} ms a step, FP32 {one.fp32_seconds * 1e3:.3g} ms"
            + (
                f", peak memory {one.memory:.2f}"
                if one.memory is not None
                else ", peak memory not counted by the allocator"
            )
            for one in self.speeds
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self) | {
            "speeds": [dataclasses.asdict(one) | {"verdict": one.verdict} for one in self.speeds]
        }


def timed(case: AuditCase, backends: Sequence[Backend], *, machine: str, rounds: int = ROUNDS) -> Timing:
    """Time a case on one real device, in the dtypes of those backends.

    Raises:
        UsageError: the case is a script, has a loop of its own, or its step raises.
    """
    if case.isolated:
        raise UsageError(f"{case.id} is a script: it is counted, not timed; write a case to time its step")
    first = backends[0]
    runs = {"float32": _program(case, first, amp=False)}
    runs |= {one.dtype: _program(case, one, amp=True) for one in backends}
    # Of one thread, CPU time is the wall time less that in which other programs had the core.
    clock = time.process_time if _by_cpu_time(first.device_type) else benchmark.timer
    timers = {name: benchmark.Timer("step()", globals={"step": run.step}, timer=clock) for name, run in runs.items()}

    def measured(name: str, number: int) -> float:
        with runs[name].precision():
            return timers[name].timeit(number).median

    for name in runs:
        measured(name, 2)  # what is made once
    repeats = {name: max(1, math.ceil(_LEAST_SECONDS / measured(name, 2))) for name in runs}
    peaks = {name: _peak(run, first.device_type) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds[name].append(measured(name, repeats[name]))
    return Timing(
        machine=machine,
        torch=torch.__version__,
        baseline=_baseline(first.device_type),
        rounds=rounds,
        speeds=tuple(_speed(one.dtype, seconds, peaks) for one in backends),
    )


def _speed(dtype: str, seconds: dict[str, list[float]], peaks: dict[str, int | None]) -> Speed:
    ratios = sorted(fp32 / amp for fp32, amp in zip(seconds["float32"], seconds[dtype], strict=True))
    low, high = interval(len(ratios))
    peak, peak32 = peaks[dtype], peaks["float32"]
    return Speed(
        dtype=dtype,
        seconds=statistics.median(seconds[dtype]),
        fp32_seconds=statistics.median(seconds["float32"]),
        speedup=statistics.median(ratios),
        low=ratios[low],
        high=ratios[high],
        memory=peak / peak32 if peak is not None and peak32 else None,
    )


def interval(count: int, confidence: float = 0.99) -> tuple[int, int]:
    """Places, in ``count`` sorted values, between which the median of what they are drawn from lies.

    Each value is below that median with probability 1/2, so how many are is binomial.
    """
    below, place = 0.0, -1
    while place + 1 < (count - 1) / 2 and below + math.comb(count, place + 1) / 2**count <= (1 - confidence) / 2:
        place += 1
        below += math.comb(count, place) / 2**count
    place = max(place, 0)
    return place, count - 1 - place


@dataclasses.dataclass(frozen=True, slots=True)
class _Program:
    """A program of its own: one step, and the precision around its steps, which is no part of what is timed."""

    step: Callable[[], None]
    precision: Callable[[], AbstractContextManager[None]]


def _program(case: AuditCase, backend: Backend, *, amp: bool) -> _Program:
    """The program; in FP32 its regions and scalers are disabled while it is built and runs."""

    @contextmanager
    def off() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for change in () if amp else (AutocastOff(), ScalerOff()):
                stack.enter_context(change.around(Watch(ops=False)))
            yield

    with seeded(case.id), backend.activate(), off():
        training = case.training(backend)
    if training.run is not None:
        raise UsageError(f"{case.id} has a loop of its own: it is counted, not timed; give it a step to time it")
    batches = itertools.cycle(training.batches)
    holder = dataclasses.replace(training, batches=cast("Any", _Endless(batches)))
    steps = iter(stepper(holder, backend)())

    def step() -> None:
        next(steps)

    return _Program(step, off)


class _Endless:
    """Batches that never end, each when it is asked for."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: Any) -> Any:
        return next(self._batches)


def _by_cpu_time(device_type: str) -> bool:
    return device_type == "cpu" and torch.get_num_threads() == 1


def _peak(program: _Program, device_type: str) -> int | None:
    """Most bytes that the allocator held during a step; None where it does not count."""
    if device_type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    with program.precision():
        program.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _baseline(device_type: str) -> str:
    tf32 = torch.get_float32_matmul_precision() != "highest"
    clock = "CPU time" if _by_cpu_time(device_type) else "wall time"
    parts = ["float32", "eager", f"{torch.get_num_threads()} thread(s)", clock]
    if device_type == "cuda":
        parts.append("TF32 on" if tf32 or torch.backends.cuda.matmul.allow_tf32 else "TF32 off")
    return ", ".join([*parts, "memory format, compile and optimizer as in the program"])
