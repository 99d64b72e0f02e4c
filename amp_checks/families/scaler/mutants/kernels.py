"""The two updates that torch makes in C++, replaced through the dispatcher by faulty ones in Python."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from amp_checks.core import Backend
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api import private

UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
UPDATE = "_amp_update_scale_"

Kernel = Callable[..., object]


@contextmanager
def _replaced(backend: Backend, *, op: str, function: Kernel) -> Iterator[Backend]:
    key = "CPU" if backend.emulated or backend.device_type == "cpu" else backend.device_type.upper()
    with warnings.catch_warnings():
        # Torch says that a kernel is overridden: that is what is meant.
        warnings.simplefilter("ignore")
        with private.kernel(op, key, function):
            yield backend


def replaced(op: str, kernel: Kernel) -> Callable[[Backend], AbstractContextManager[Backend]]:
    """Plant a kernel in place of torch's, on the backend's device."""
    return functools.partial(_replaced, op=op, function=kernel)


def unscale(
    grads: Sequence[torch.Tensor],
    found_inf: torch.Tensor,
    inv_scale: torch.Tensor,
    *,
    bad: Callable[[torch.Tensor], torch.Tensor] = lambda grad: ~torch.isfinite(grad),
    only: slice = slice(None),
    found: Callable[[torch.Tensor], object] = lambda found_inf: found_inf.fill_(1.0),
    factor: Callable[[torch.Tensor], torch.Tensor] = lambda inv_scale: inv_scale,
    spare_bad: bool = False,
    clears: bool = False,
) -> None:
    """A correct check-and-unscale, one part of which may be exchanged.

    Args:
        grads: multiplied in place by ``factor(inv_scale)``.
        found_inf: 1-element float32; ``found`` is called with it where an element is ``bad``.
        inv_scale: 1-element float32.
        bad: which elements of a gradient count.
        only: which of the gradients are looked at.
        found: what is done where one counts.
        factor: what the gradients are multiplied by.
        spare_bad: leave a gradient with a bad element as it is.
        clears: set the flag to 0 first.
    """
    if clears:
        found_inf.zero_()
    looked_at = grads[only]
    for grad in grads:
        is_bad = bool(bad(grad).any())
        if is_bad and any(grad is other for other in looked_at):
            found(found_inf)
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


def _row(
    name: str,
    fault: str,
    op: str,
    kernel: Kernel,
    case: str,
    killed_by: tuple[str, ...],
) -> Mutant:
    return Mutant(
        id=f"kernel-{name}",
        family="scaler",
        fault=fault,
        plant=replaced(op, kernel),
        case=case,
        killed_by=killed_by,
    )


_SKIP_MISSED = (
    "check_step",
    "check_scale",
    "check_growth_tracker",
    "check_parameters",
    "check_optimizer_state",
    "check_gradients",
)
ROWS: tuple[Mutant, ...] = (
    _row(
        "nan-not-found",
        "NaN does not count as a bad gradient",
        UNSCALE,
        functools.partial(unscale, bad=torch.isinf),
        "nan-skips",
        _SKIP_MISSED,
    ),
    _row(
        "inf-not-found",
        "inf does not count as a bad gradient",
        UNSCALE,
        functools.partial(unscale, bad=torch.isnan),
        "inf-skips",
        _SKIP_MISSED,
    ),
    _row(
        "minus-inf-not-found",
        "-inf does not count as a bad gradient",
        UNSCALE,
        functools.partial(unscale, bad=lambda grad: torch.isnan(grad) | torch.isposinf(grad)),
        "minus-inf-skips",
        _SKIP_MISSED,
    ),
    _row(
        "last-element-not-checked",
        "the last element of a gradient is not looked at",
        UNSCALE,
        functools.partial(unscale, bad=lambda grad: ~torch.isfinite(grad.flatten()[:-1])),
        "inf-skips",
        _SKIP_MISSED,
    ),
    _row(
        "bad-gradient-not-unscaled",
        "a gradient with a bad element is left scaled",
        UNSCALE,
        functools.partial(unscale, spare_bad=True),
        "overflow-skips",
        ("check_gradients",),
    ),
    _row(
        "not-unscaled",
        "gradients are checked and left scaled",
        UNSCALE,
        functools.partial(unscale, factor=torch.ones_like),
        "clean-steps",
        ("check_gradients", "check_parameters", "check_optimizer_state"),
    ),
    _row(
        "no-cap",
        "the scale grows to inf",
        UPDATE,
        functools.partial(update, capped=False),
        "growth-is-capped-by-a-large-factor",
        ("check_step", "check_scale", "check_gradients", "check_optimizer_state"),
    ),
    _row(
        "no-backoff",
        "a skip leaves the scale",
        UPDATE,
        functools.partial(update, backs_off=False),
        "backoff-resets-tracker",
        ("check_scale",),
    ),
    _row(
        "skip-keeps-tracker",
        "a skip leaves the tracker",
        UPDATE,
        functools.partial(update, resets_on_skip=False),
        "backoff-resets-tracker",
        ("check_growth_tracker",),
    ),
    _row(
        "growth-keeps-tracker",
        "growth leaves the tracker",
        UPDATE,
        functools.partial(update, resets_on_growth=False),
        "growth-once",
        ("check_growth_tracker",),
    ),
    _row(
        "takes-any-argument",
        "the check kernel takes scales and flags of any size and dtype",
        UNSCALE,
        unscale,
        "kernel-arguments",
        ("check_kernel_arguments",),
    ),
    _row(
        "flag-not-sticky",
        "a clean call of the check kernel clears the flag",
        UNSCALE,
        functools.partial(unscale, clears=True),
        "kernel-arithmetic",
        ("check_kernel_arithmetic",),
    ),
    _row(
        "grows-beyond-float32",
        "the update kernel grows the scale to inf",
        UPDATE,
        functools.partial(update, capped=False),
        "growth-stops-below-inf",
        ("check_growth_is_capped",),
    ),
    _row(
        "grows-to-inf",
        "the update kernel grows the scale to inf",
        UPDATE,
        functools.partial(update, capped=False),
        "update-kernel-arithmetic",
        ("check_update_kernel_arithmetic",),
    ),
    _row(
        "grows-early",
        "the scale grows one iteration early",
        UPDATE,
        functools.partial(update, early=1),
        "growth-once",
        ("check_scale", "check_growth_tracker", "check_gradients"),
    ),
)
