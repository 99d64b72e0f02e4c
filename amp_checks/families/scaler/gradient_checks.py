"""A bad gradient is found wherever it sits; a clean one is unscaled and used, however it lies in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_checks.core import Backend, Check, Finding, exact
from amp_checks.families.scaler.gradient_kinds import SCALE, Setup, build
from amp_checks.families.scaler.gradients import GradientCase
from amp_checks.families.scaler.optimizers.training import difference
from amp_checks.families.scaler.stories.calls import NO_ERROR, outcome


def checks_for(case: GradientCase) -> Iterator[Check]:
    if case.refused:
        yield check_gradient_is_refused
        return
    yield check_bad_gradient_skips_step
    yield check_clean_gradient_is_used
    yield check_gradient_is_unscaled


def _setup(case: GradientCase, backend: Backend, bad: float | None) -> Setup:
    return build(case, backend, scaler=backend.scaler(init_scale=SCALE), bad=bad)


def _step(setup: Setup, told: str, *, why: str) -> Iterator[Finding]:
    """A step and an update, neither of which may raise."""
    for name, call in (("step", lambda: setup.scaler.step(setup.optimizer)), ("update", setup.scaler.update)):
        seen = outcome(f"scaler.{name}", call)
        yield exact(f"error of {name} {told}", actual=seen, expected=NO_ERROR, why=why)


def check_bad_gradient_skips_step(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """With inf, -inf or NaN in the case's place no parameter changes, and the scale backs off."""
    for bad in (math.inf,) if case.sums else (math.inf, -math.inf, math.nan):
        setup = _setup(case, backend, bad)
        before = setup.values()
        yield from _step(setup, f"with {bad} in gradient {case.bad}", why=case.source)
        for number, (now, then) in enumerate(zip(setup.values(), before, strict=True)):
            yield exact(
                f"parameter {number} after a step with {bad} in gradient {case.bad}",
                actual=difference(now, then) or "unchanged",
                expected="unchanged",
                why=case.source,
            )
        yield exact(
            f"scale after a step with {bad} in gradient {case.bad}",
            actual=setup.scaler.get_scale(),
            expected=SCALE / 2,
            why="torch.amp.GradScaler.update: skipped steps multiply the scale by backoff_factor",
        )


def check_clean_gradient_is_used(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """Without a bad value the step is the one without a scaler, bit for bit, and the scale stays."""
    setup = _setup(case, backend, None)
    yield from _step(setup, "with clean gradients", why=case.source)
    plain = build(case, backend, scaler=None, bad=None)
    plain.optimizer.step()
    for number, (actual, expected) in enumerate(zip(setup.values(), plain.values(), strict=True)):
        yield exact(
            f"parameter {number} after a clean step",
            actual=difference(actual, expected) or "that of a step without a scaler",
            expected="that of a step without a scaler",
            why="the scale is a power of two: scaling and unscaling round nothing",
        )
    yield exact("scale after a clean step", actual=setup.scaler.get_scale(), expected=SCALE, why=case.source)


def check_gradient_is_unscaled(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """``unscale_`` leaves the unscaled gradients, bit for bit, also those beside a bad one."""
    for bad in (None, math.inf):
        if case.sums and bad is not None:
            continue
        setup = _setup(case, backend, bad)
        told = f"unscale_ of {'clean gradients' if bad is None else 'one with inf'}"
        seen = outcome("scaler.unscale_", setup.scaler.unscale_, setup.optimizer)
        yield exact(f"error of {told}", actual=seen, expected=NO_ERROR, why=case.source)
        plain = build(case, backend, scaler=None, bad=bad)
        for number, (actual, expected) in enumerate(zip(setup.gradients(), plain.gradients(), strict=True)):
            yield exact(
                f"gradient {number} after {told}",
                actual=difference(actual, expected) or "unscaled",
                expected="unscaled",
                why="torch.amp.GradScaler.unscale_: divides the gradients by the scale",
            )


def check_gradient_is_refused(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """``unscale_`` raises the error that the case names (its text up to where it depends on the build)."""
    setup = _setup(case, backend, None)
    error = outcome("scaler.unscale_", setup.scaler.unscale_, setup.optimizer)
    seen = outcome("scaler.update", setup.scaler.update)
    expected = "AssertionError: No inf checks were recorded prior to update."
    yield exact("error of update after it", actual=seen, expected=expected, why=case.source)
    yield exact(
        "error of unscale_",
        actual=error[: len(case.refused)] if error.startswith(case.refused) else error,
        expected=case.refused,
        why=case.source,
    )
