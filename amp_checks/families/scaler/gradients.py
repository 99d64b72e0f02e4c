"""Where the bad value is: gradients of every layout and dtype that a scaler meets, bad in one place or clean.

A bad gradient is found wherever it is; a clean one is unscaled and used, however it lies in memory.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Check, Finding, attempt, exact
from amp_checks.families.scaler.bits import same
from amp_checks.families.scaler.rows import CLASS, NO_ERROR, OBSERVED, STEP, UNSCALE, UPDATE, ScalerRow, outcome
from amp_checks.torch_api import numerics
from amp_checks.torch_api.backend import Backend


class Layout(enum.StrEnum):
    """How a gradient lies in memory, or that there is none."""

    DENSE = "dense"
    SCALAR = "0-dim"
    EMPTY = "empty"
    TRANSPOSED = "transposed"
    STRIDED = "every other column"
    CHANNELS_LAST = "channels last"
    SPARSE = "sparse"
    DUPLICATES = "sparse, with rows that occur twice"
    EXPANDED = "expanded"
    NONE = "none"
    FROZEN = "none, on a parameter that requires none"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One parameter's gradient; ``group`` is the parameter group it is in."""

    layout: Layout = Layout.DENSE
    dtype: str = "float32"
    group: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientCase(ScalerRow):
    """The parameters of one optimizer, and where among them a bad value may sit.

    Attributes:
        gradients: one for each parameter.
        bad: number of the parameter whose gradient is bad.
        element: which of its elements (0, or -1 for the last).
        sums: instead of one bad element, two finite ones of the same place, whose sum overflows.
        refused: ``"ValueError: ..."`` where ``unscale_`` must refuse the clean gradients.
    """

    gradients: tuple[Gradient, ...]
    bad: int = 0
    element: int = 0
    sums: bool = False
    refused: str = ""
    source: str = f"{STEP}: inf and NaN gradients skip the step"
    behaviours: tuple[int, ...] = (17,)


_PLAIN = Gradient()
_LAYOUTS = (
    Layout.SCALAR,
    Layout.TRANSPOSED,
    Layout.STRIDED,
    Layout.CHANNELS_LAST,
    Layout.SPARSE,
    Layout.DUPLICATES,
)


def _around(gradient: Gradient) -> tuple[Gradient, ...]:
    """Something before and something behind, as in a model."""
    return (_PLAIN, gradient, Gradient(layout=Layout.EMPTY), Gradient(group=1))


ROWS: tuple[GradientCase, ...] = (
    *(
        GradientCase(
            id=f"bad-in-parameter-{bad}-{name}-element",
            gradients=(_PLAIN, _PLAIN, Gradient(group=1)),
            bad=bad,
            element=element,
        )
        for bad in (0, 1, 2)
        for name, element in (("first", 0), ("last", -1))
    ),
    *(
        GradientCase(
            id=f"bad-in-{layout.name.lower().replace('_', '-')}-gradient",
            gradients=_around(Gradient(layout=layout)),
            bad=1,
            element=-1,
            behaviours=(17, 18, 19) if layout in {Layout.SPARSE, Layout.DUPLICATES} else (17, 18),
        )
        for layout in _LAYOUTS
    ),
    *(
        GradientCase(
            id=f"bad-in-{dtype}-gradient",
            gradients=_around(Gradient(dtype=dtype)),
            bad=1,
            element=-1,
            source=f"{OBSERVED}: bfloat16 and float64 gradients are unscaled as they are",
            behaviours=(16, 17),
        )
        for dtype in ("bfloat16", "float64")
    ),
    *(
        GradientCase(
            id=f"bad-in-gradient-{bad}-of-three-dtypes",
            gradients=(_PLAIN, Gradient(dtype="bfloat16"), Gradient(dtype="float64"), _PLAIN),
            bad=bad,
            behaviours=(16, 17),
        )
        for bad in (0, 1, 2)
    ),
    GradientCase(
        id="bad-in-sparse-bfloat16-gradient",
        gradients=_around(Gradient(layout=Layout.DUPLICATES, dtype="bfloat16")),
        bad=1,
        source="https://github.com/pytorch/pytorch/issues/35810",
        behaviours=(16, 19),
    ),
    GradientCase(
        id="bad-beside-none",
        gradients=(
            Gradient(layout=Layout.NONE),
            _PLAIN,
            Gradient(layout=Layout.FROZEN),
            Gradient(layout=Layout.NONE, group=1),
        ),
        bad=1,
        behaviours=(17, 18),
    ),
    GradientCase(
        id="bad-in-duplicates-that-sum-to-inf",
        gradients=_around(Gradient(layout=Layout.DUPLICATES)),
        bad=1,
        sums=True,
        source=f"{CLASS}: the comment on coalescing in _unscale_grads_",
        behaviours=(19,),
    ),
    GradientCase(
        id="float16-gradient-refused",
        gradients=(_PLAIN, Gradient(dtype="float16")),
        refused="ValueError: Attempting to unscale FP16 gradients.",
        behaviours=(16,),
    ),
    GradientCase(
        id="sparse-float16-gradient-refused",
        gradients=(_PLAIN, Gradient(dtype="float16", layout=Layout.DUPLICATES)),
        refused="ValueError: Attempting to unscale FP16 gradients.",
        behaviours=(16, 19),
    ),
    GradientCase(
        id="complex-gradient-refused",
        gradients=(_PLAIN, Gradient(dtype="complex64")),
        refused='NotImplementedError: "_amp_foreach_non_finite_check_and_unscale_',
        source=f"{OBSERVED}: the check has no kernel for complex numbers",
        behaviours=(16,),
    ),
    GradientCase(
        id="expanded-gradient-refused",
        gradients=(_PLAIN, Gradient(layout=Layout.EXPANDED)),
        refused="RuntimeError: unsupported operation: more than one element of the written-to tensor",
        source=f"{OBSERVED}: memory that overlaps is not written to in place",
        behaviours=(18,),
    ),
)


SCALE = 1024.0
OVERFLOWS_TWICE = 3e38
"""Finite in float32 and bfloat16; twice it is not."""


@dataclasses.dataclass(slots=True)
class Setup:
    """An optimizer whose parameters hold the case's gradients, and the scaler (None: the gradients are not scaled)."""

    scaler: Any
    parameters: list[torch.Tensor]
    optimizer: torch.optim.Optimizer

    def values(self) -> list[torch.Tensor]:
        """Copies of the parameters."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def gradients(self) -> list[torch.Tensor | None]:
        """Copies of the gradients, dense."""
        return [None if p.grad is None else p.grad.to_dense().clone() for p in self.parameters]


def build(case: GradientCase, backend: Backend, *, scaler: Any, bad: float | None) -> Setup:
    """Parameters, and gradients as a backward leaves them.

    Args:
        case: which.
        backend: where.
        scaler: whose scale the gradients carry; None for unscaled ones.
        bad: what is in the case's place; None for clean gradients.
    """
    scale = 1.0
    if scaler is not None:
        attempt("scaler.scale", scaler.scale, torch.zeros((), device=backend.device_type))
        scale = scaler.get_scale()
    parameters = []
    groups: dict[int, list[torch.Tensor]] = {}
    for number, gradient in enumerate(case.gradients):
        here = bad if number == case.bad else None
        parameters.append(_parameter(case, gradient, number, backend, scale=scale, bad=here))
        groups.setdefault(gradient.group, []).append(parameters[-1])
    return Setup(scaler, parameters, torch.optim.SGD([{"params": group} for group in groups.values()], lr=0.5))


_SHAPES: dict[Layout, tuple[int, ...]] = {
    Layout.SCALAR: (),
    Layout.EMPTY: (0, 3),
    Layout.CHANNELS_LAST: (2, 3, 2, 2),
}


def _parameter(
    case: GradientCase, gradient: Gradient, number: int, backend: Backend, *, scale: float, bad: float | None
) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, gradient.dtype)
    shape = _SHAPES.get(gradient.layout, (4, 6))
    draw = functools.partial(numerics.randn, *shape, dtype=dtype, device=backend.device_type)
    parameter = draw(seed=f"{case.id} parameter {number}")
    if gradient.layout is Layout.FROZEN:
        return parameter
    parameter.requires_grad_()
    if gradient.layout is not Layout.NONE:
        values = draw(seed=f"{case.id} gradient {number}") * scale
        parameter.grad = _laid_out(values, case, gradient, bad)
    return parameter


def _laid_out(values: torch.Tensor, case: GradientCase, gradient: Gradient, bad: float | None) -> torch.Tensor:
    """The gradient in its layout, with the bad value where the case has it."""
    if gradient.layout in {Layout.SPARSE, Layout.DUPLICATES}:
        return _sparse(values, case, gradient, bad)
    if bad is not None:
        # Through a flat copy: the place is counted in the order of the elements, whatever the layout.
        flat = values.flatten()
        flat[case.element] = bad
        values = flat.view(values.shape)
    match gradient.layout:
        case Layout.TRANSPOSED:
            return values.t().contiguous().t()
        case Layout.STRIDED:
            return torch.stack((values, torch.zeros_like(values)), dim=-1).flatten(-2)[:, ::2]
        case Layout.CHANNELS_LAST:
            return values.contiguous(memory_format=torch.channels_last)
        case Layout.EXPANDED:
            return values[:1].expand_as(values)
        case _:
            return values


def _sparse(values: torch.Tensor, case: GradientCase, gradient: Gradient, bad: float | None) -> torch.Tensor:
    """Rows 1 and 3; with duplicates, row 3 in two parts that add up exactly."""
    rows = values[[1, 3]].clone()
    if bad is not None and not case.sums:
        rows.view(-1)[case.element] = bad
    index = [1, 3]
    if gradient.layout is Layout.DUPLICATES:
        index = [1, 3, 3]
        rows = torch.cat((rows[:1], rows[1:] / 2, rows[1:] / 2))
    if bad is not None and case.sums:
        rows[1:, 0] = OVERFLOWS_TWICE
    where = torch.tensor([index], device=values.device)
    return torch.sparse_coo_tensor(where, rows, values.shape, check_invariants=False)


def checks_for(case: GradientCase) -> Iterator[Check]:
    if case.refused:
        yield check_gradient_is_refused
        return
    yield check_bad_gradient_skips_step
    yield check_clean_gradient_is_used
    yield check_gradient_is_unscaled


def _setup(case: GradientCase, backend: Backend, bad: float | None) -> Setup:
    return build(case, backend, scaler=backend.scaler(init_scale=SCALE), bad=bad)


def _step(case: GradientCase, setup: Setup, when: str) -> Iterator[Finding]:
    """A step and an update, neither of which may raise."""
    stepped = outcome(setup.scaler.step, setup.optimizer)
    yield case.exact(f"error of step {when}", actual=stepped, expected=NO_ERROR)
    yield case.exact(f"error of update {when}", actual=outcome(setup.scaler.update), expected=NO_ERROR)


def check_bad_gradient_skips_step(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """With inf, -inf or NaN in the case's place no parameter changes, and the scale backs off."""
    for bad in (math.inf,) if case.sums else (math.inf, -math.inf, math.nan):
        setup = _setup(case, backend, bad)
        before = setup.values()
        where = f"with {bad} in gradient {case.bad}"
        yield from _step(case, setup, where)
        for number, (now, then) in enumerate(zip(setup.values(), before, strict=True)):
            yield same(f"parameter {number} after a step {where}", now, then, "unchanged", why=case.source)
        yield exact(
            f"scale after a step {where}",
            actual=setup.scaler.get_scale(),
            expected=SCALE / 2,
            why=f"{UPDATE}: skipped steps multiply the scale by backoff_factor",
        )


def check_clean_gradient_is_used(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """Without a bad value the step is the one without a scaler, bit for bit, and the scale stays."""
    setup = _setup(case, backend, None)
    yield from _step(case, setup, "with clean gradients")
    plain = build(case, backend, scaler=None, bad=None)
    plain.optimizer.step()
    why = "the scale is a power of two: scaling and unscaling round nothing"
    for number, (actual, expected) in enumerate(zip(setup.values(), plain.values(), strict=True)):
        subject = f"parameter {number} after a clean step"
        yield same(subject, actual, expected, "that of a step without a scaler", why=why)
    yield case.exact("scale after a clean step", actual=setup.scaler.get_scale(), expected=SCALE)


def check_gradient_is_unscaled(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """``unscale_`` leaves the unscaled gradients, bit for bit, also those beside a bad one."""
    why = f"{UNSCALE}: divides the gradients by the scale"
    for bad in (None,) if case.sums else (None, math.inf):
        setup = _setup(case, backend, bad)
        call = f"unscale_ of {'clean gradients' if bad is None else 'one with inf'}"
        seen = outcome(setup.scaler.unscale_, setup.optimizer)
        yield case.exact(f"error of {call}", actual=seen, expected=NO_ERROR)
        plain = build(case, backend, scaler=None, bad=bad)
        for number, (actual, expected) in enumerate(zip(setup.gradients(), plain.gradients(), strict=True)):
            yield same(f"gradient {number} after {call}", actual, expected, "unscaled", why=why)


def check_gradient_is_refused(case: GradientCase, backend: Backend) -> Iterator[Finding]:
    """``unscale_`` raises the error that the case names (its text up to where it depends on the build)."""
    setup = _setup(case, backend, None)
    error = outcome(setup.scaler.unscale_, setup.optimizer)
    expected = "AssertionError: No inf checks were recorded prior to update."
    yield case.exact("error of update after it", actual=outcome(setup.scaler.update), expected=expected)
    error = error[: len(case.refused)] if error.startswith(case.refused) else error
    yield case.exact("error of unscale_", actual=error, expected=case.refused)
