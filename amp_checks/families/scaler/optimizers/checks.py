"""A skipped step must not have been; an unskipped one must be the unscaled one. Bit for bit, for every optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_checks.core import Check, Finding
from amp_checks.families.scaler.bits import all_same
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.families.scaler.optimizers.graphed import GraphedTraining
from amp_checks.families.scaler.optimizers.training import Training, run_steps
from amp_checks.families.scaler.rows import STEP
from amp_checks.torch_api.backend import Backend

SCALE = 1024.0
BAD = (math.inf, -math.inf, math.nan)


def checks_for(_: OptimizerCase) -> Iterator[Check]:
    yield check_skipped_step_leaves_parameters
    yield check_skipped_step_leaves_optimizer_state
    yield check_skipped_step_leaves_unscaled_gradients
    yield check_step_after_skip_equals_step_without
    yield check_scaled_step_equals_unscaled_step


def _start(case: OptimizerCase, backend: Backend) -> Training:
    return _training(case, backend, backend.scaler(init_scale=SCALE))


def _training(case: OptimizerCase, backend: Backend, scaler: Any) -> Training:
    kind = GraphedTraining if case.graphed else Training
    return kind(case, backend, scaler)


def check_skipped_step_leaves_parameters(case: OptimizerCase, backend: Backend) -> Iterator[Finding]:
    """Parameters before and after a step on inf, -inf and NaN."""
    for bad in BAD:
        training = run_steps(_start(case, backend), ["first"])
        before = training.bits_of_parameters()
        training.step("bad", bad=bad)
        yield from all_same(training.bits_of_parameters(), before, when=f"after a step on {bad}", why=case.source)


def check_skipped_step_leaves_optimizer_state(case: OptimizerCase, backend: Backend) -> Iterator[Finding]:
    """Momentum, moments and step counters before and after a step on inf, -inf and NaN."""
    for bad in BAD:
        training = run_steps(_start(case, backend), ["first"])
        before = training.bits_of_state()
        training.step("bad", bad=bad)
        after = training.bits_of_state()
        subject = f"names in the optimizer's state after a step on {bad}"
        yield case.exact(subject, actual=", ".join(after), expected=", ".join(before))
        yield from all_same(after, before, when=f"after a step on {bad}", why=case.source)


def check_skipped_step_leaves_unscaled_gradients(case: OptimizerCase, backend: Backend) -> Iterator[Finding]:
    """The finite gradients of a skipped step have been divided by the scale, as ``step`` does for all of them."""
    training = run_steps(_start(case, backend), ["first"])
    training.step("bad", bad=math.inf)
    plain = _training(case, backend, None)
    plain.set_gradients("bad", bad=math.inf)
    why = f"{STEP}: 1. internally invokes unscale_(optimizer)"
    yield from all_same(training.bits_of_gradients(), plain.bits_of_gradients(), when="after a step on inf", why=why)


def check_step_after_skip_equals_step_without(case: OptimizerCase, backend: Backend) -> Iterator[Finding]:
    """A run with a bad batch, first or later, ends where a run without it ends."""
    clean = run_steps(_start(case, backend), ["first", "second"])
    for place in (0, 1):
        training = _start(case, backend)
        with _uninitialised_memory_is_nan():
            run_steps(training, ["first"] * place)
            training.step("bad", bad=math.nan)
            run_steps(training, ["first", "second"][place:])
        when = f"after two steps, with a bad batch before step {place + 1}"
        yield from all_same(training.bits(), clean.bits(), when=when, why=case.source)


@contextmanager
def _uninitialised_memory_is_nan() -> Iterator[None]:
    """What an optimizer allocates on a skipped step and never writes must not depend on what lay there before."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def check_scaled_step_equals_unscaled_step(case: OptimizerCase, backend: Backend) -> Iterator[Finding]:
    """Multiplying by a power of two and dividing again is exact: scaled training is the unscaled one."""
    scaled = run_steps(_start(case, backend), ["first", "second"])
    plain = run_steps(_training(case, backend, None), ["first", "second"])
    why = "the scale is a power of two: scaling and unscaling round nothing"
    yield from all_same(scaled.bits(), plain.bits(), when="after two steps", why=why)
