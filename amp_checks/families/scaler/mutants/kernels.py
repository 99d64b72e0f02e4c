"""The two updates that torch makes in C++, replaced through the dispatcher by faulty ones in Python."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from amp_checks.families.scaler.mutants.rows import Plant, mutant
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend


@contextmanager
def _replaced(backend: Backend, *, op: str, function: Callable[..., object]) -> Iterator[Backend]:
    key = "CPU" if backend.emulated or backend.device_type == "cpu" else backend.device_type.upper()
    with warnings.catch_warnings():
        # Torch says that a kernel is overridden: that is what is meant.
        warnings.simplefilter("ignore")
        with private.kernel(op, key, function):
            yield backend


def unscale(
    grads: Sequence[torch.Tensor],
    found_inf: torch.Tensor,
    inv_scale: torch.Tensor,
    *,
    bad: Callable[[torch.Tensor], torch.Tensor] = lambda grad: ~torch.isfinite(grad),
    factor: Callable[[torch.Tensor], torch.Tensor] = lambda inv_scale: inv_scale,
    spare_bad: bool = False,
    clears: bool = False,
) -> None:
    """A correct check-and-unscale, one part of which may be exchanged.

    Args:
        grads: multiplied in place by ``factor(inv_scale)``.
        found_inf: 1-element float32; becomes 1 where an element is ``bad``.
        inv_scale: 1-element float32.
        bad: which elements of a gradient count.
        factor: what the gradients are multiplied by.
        spare_bad: leave a gradient with a bad element as it is.
        clears: set the flag to 0 first.
    """
    if clears:
        found_inf.zero_()
    for grad in grads:
        is_bad = bool(bad(grad).any())
        if is_bad:
            found_inf.fill_(1.0)
        if not (is_bad and spare_bad):
            grad.mul_(factor(inv_scale))


def update(
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    *,
    capped: bool = True,
    backs_off: bool = True,
    resets_on_skip: bool = True,
    resets_on_growth: bool = True,
    early: int = 0,
) -> torch.Tensor:
    """A correct update of scale and tracker, one part of which may be exchanged."""
    if float(found_inf):
        if backs_off:
            scale.fill_(float(scale) * backoff_factor)
        if resets_on_skip:
            tracker.fill_(0)
        return scale
    count = int(tracker) + 1
    if count == growth_interval - early:
        grown = torch.tensor(float(scale) * growth_factor, dtype=torch.float64).to(torch.float32)
        if not capped or bool(torch.isfinite(grown)):
            scale.copy_(grown)
        count = 0 if resets_on_growth else count
    tracker.fill_(count)
    return scale


def unscaling(**parts: Any) -> Plant:
    """Plant `unscale` with some parts exchanged in place of torch's kernel, on the backend's device."""
    kernel = functools.partial(unscale, **parts)
    return functools.partial(_replaced, op="_amp_foreach_non_finite_check_and_unscale_", function=kernel)


def updating(**parts: Any) -> Plant:
    """The same of `update`."""
    return functools.partial(_replaced, op="_amp_update_scale_", function=functools.partial(update, **parts))


_MISSED = (
    "check_step",
    "check_scale",
    "check_growth_tracker",
    "check_parameters",
    "check_optimizer_state",
    "check_gradients",
)
"""Who sees that a step is not skipped."""


def _row(name: str, fault: str, plant: Plant, case: str, *killed_by: str) -> Mutant:
    return mutant(f"kernel-{name}", fault, plant, case, *killed_by)


ROWS: tuple[Mutant, ...] = (
    _row("nan-not-found", "NaN does not count as a bad gradient", unscaling(bad=torch.isinf), "nan-skips", *_MISSED),
    _row("inf-not-found", "inf does not count as a bad gradient", unscaling(bad=torch.isnan), "inf-skips", *_MISSED),
    _row(
        "minus-inf-not-found",
        "-inf does not count as a bad gradient",
        unscaling(bad=lambda grad: torch.isnan(grad) | torch.isposinf(grad)),
        "minus-inf-skips",
        *_MISSED,
    ),
    _row(
        "last-element-not-checked",
        "the last element of a gradient is not looked at",
        unscaling(bad=lambda grad: ~torch.isfinite(grad.flatten()[:-1])),
        "inf-skips",
        *_MISSED,
    ),
    _row(
        "bad-gradient-not-unscaled",
        "a gradient with a bad element is left scaled",
        unscaling(spare_bad=True),
        "overflow-skips",
        "check_gradients",
    ),
    _row(
        "not-unscaled",
        "gradients are checked and left scaled",
        unscaling(factor=torch.ones_like),
        "clean-steps",
        "check_gradients",
        "check_parameters",
        "check_optimizer_state",
    ),
    _row(
        "no-cap",
        "the scale grows to inf",
        updating(capped=False),
        "growth-is-capped-by-a-large-factor",
        "check_step",
        "check_scale",
        "check_gradients",
        "check_optimizer_state",
    ),
    _row("no-backoff", "a skip leaves the scale", updating(backs_off=False), "backoff-resets-tracker", "check_scale"),
    _row(
        "skip-keeps-tracker",
        "a skip leaves the tracker",
        updating(resets_on_skip=False),
        "backoff-resets-tracker",
        "check_growth_tracker",
    ),
    _row(
        "growth-keeps-tracker",
        "growth leaves the tracker",
        updating(resets_on_growth=False),
        "growth-once",
        "check_growth_tracker",
    ),
    _row(
        "takes-any-argument",
        "the check kernel takes scales and flags of any size and dtype",
        unscaling(),
        "kernel-arguments",
        "check_kernel_arguments",
    ),
    _row(
        "flag-not-sticky",
        "a clean call of the check kernel clears the flag",
        unscaling(clears=True),
        "kernel-arithmetic",
        "check_kernel_arithmetic",
    ),
    _row(
        "grows-beyond-float32",
        "the update kernel grows the scale to inf",
        updating(capped=False),
        "growth-stops-below-inf",
        "check_growth_is_capped",
    ),
    _row(
        "grows-to-inf",
        "the update kernel grows the scale to inf",
        updating(capped=False),
        "update-kernel-arithmetic",
        "check_update_kernel_arithmetic",
    ),
    _row(
        "grows-early",
        "the scale grows one iteration early",
        updating(early=1),
        "growth-once",
        "check_scale",
        "check_growth_tracker",
        "check_gradients",
    ),
)
