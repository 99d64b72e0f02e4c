"""Ops that take 16 bits and give wrong values: what they should give, and where that is known to fail. One row each.

The op is called with inputs that the low dtype holds exactly, outside autocast and inside a region. Its result is held
to a bound of float64's, or to an interval.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch.nn import functional

from amp_checks.core import Check, Finding, attempt, bounded, exact
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import Threshold, error_ratio, randn

_CPU = frozenset({"cpu"})
"""Wrong on the CPU, by arithmetic that a GPU may or may not share: it was not seen there."""

ACCURACY = Threshold(
    value=2.0,
    unit="eps(low dtype) * max|float64 reference|",
    healthy="0 to 0.76 over all rows without a known defect (affine_grid in bfloat16), torch 2.13.0 on a CPU",
    weakest_mutant="a float16 kernel that computes in bfloat16: 4.3 on bilinear interpolation",
    measured="amp-checks run --family fp32-only; the mutant low-precision-kernel-keeps-eight-bits",
)

FOREIGN = 1e4
"""What lies around an image in memory; no sample of the image can give it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ValueCase(Row):
    """An op whose value in 16 bits is looked at.

    Attributes:
        name: of the row; its id is ``value.<name>``.
        op: called with the inputs, all in one dtype.
        inputs: makes them, in float32.
        within: the interval that holds every right value; None: the result is held to float64's.
        in_region: also called inside a region, as a user of AMP calls it.
        devices: device types whose kernels the row is about.
    """

    family: ClassVar[str] = "fp32-only"

    name: str
    op: Callable[..., torch.Tensor]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    within: tuple[float, float] | None = None
    in_region: bool = True
    devices: frozenset[str] = frozenset({"cpu", "cuda"})

    @property
    def id(self) -> str:
        return f"value.{self.name}"

    def runs_on(self, backend: Backend) -> bool:
        # Kernels are what is looked at, and an emulated device has none.
        return not backend.emulated and backend.device_type in self.devices


def _image(*size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An image of values from 1 to 2, and the grid of its own pixels, of which some lie outside."""
    image = 1.0 + torch.special.ndtr(randn(1, 1, *size, seed="image"))
    theta = torch.eye(len(size), len(size) + 1)[None]
    grid = functional.affine_grid(theta, [1, 1, *size], align_corners=False)
    return image, grid


def _amid(image: torch.Tensor) -> torch.Tensor:
    """The image in the middle of memory filled with `FOREIGN`: a wrong index reads that, and nobody else's memory."""
    margin = 1 << 17
    memory = torch.full((image.numel() + 2 * margin,), FOREIGN, dtype=image.dtype, device=image.device)
    memory[margin : margin + image.numel()] = image.reshape(-1)
    return memory[margin : margin + image.numel()].view(image.shape)


def _sample(image: torch.Tensor, grid: torch.Tensor, *, mode: str, padding: str) -> torch.Tensor:
    return functional.grid_sample(_amid(image), grid, mode=mode, padding_mode=padding, align_corners=False)


def _grid_sample(mode: str, size: tuple[int, ...], *, padding: str = "border") -> ValueCase:
    shape = "x".join(map(str, size))
    return ValueCase(
        name=f"grid_sample.{mode}.{padding}.{shape}",
        op=functools.partial(_sample, mode=mode, padding=padding),
        inputs=functools.partial(_image, *size),
        # Bicubic weights add up to one, and their moduli to 1.6 at most in each of two directions.
        within=(-2.0, 6.0) if mode == "bicubic" else (0.0 if padding == "zeros" else 0.99, 2.01),
    )


def _line(size: int, dims: int) -> tuple[torch.Tensor, ...]:
    """A wide image: 3 in all dimensions but the last."""
    return (randn(1, 1, *[3] * (dims - 1), size, seed=f"line {size} {dims}"),)


def _interpolate(mode: str, dims: int, **settings: Any) -> ValueCase:
    """Twice 540 wide: 539 is no bfloat16 number, 540 is."""
    corners = ".corners" if settings.get("align_corners") else ""
    size = (*[3] * (dims - 1), 1080)
    return ValueCase(
        name=f"interpolate.{mode}.{dims}d{corners}",
        op=lambda x: functional.interpolate(x, size=size, mode=mode, **settings),
        inputs=functools.partial(_line, 540, dims),
    )


def _cdist_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distances by way of a product, which large inputs take by themselves."""
    return torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist")


def _near_points() -> tuple[torch.Tensor, ...]:
    return torch.full((1, 256), 30.0), torch.full((1, 256), 30.25)


def _matrix() -> tuple[torch.Tensor, ...]:
    return (randn(5, 5, seed="matrix"),)


def _steps(gradient: float) -> tuple[torch.Tensor, ...]:
    return torch.ones(4), torch.full((4,), gradient)


def _optimizer(name: str, gradient: float, **settings: Any) -> ValueCase:
    """One step on parameters in the low dtype, which AMP never has: its parameters are FP32."""

    def step(parameter: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        parameter = parameter.clone()
        parameter.grad = given.clone()
        getattr(torch.optim, name)([parameter], lr=1e-3, **settings).step()
        return parameter

    named = "".join(f".{key}" for key in settings)
    return ValueCase(
        name=f"optim.{name}{named}.gradient-{gradient:g}",
        op=step,
        inputs=functools.partial(_steps, gradient),
        in_region=False,
        devices=_CPU,
    )


_INTERPOLATIONS: tuple[tuple[str, int], ...] = (
    ("nearest", 1),
    ("nearest", 2),
    ("nearest", 3),
    ("nearest-exact", 1),
    ("nearest-exact", 2),
    ("nearest-exact", 3),
    ("area", 1),
    ("area", 2),
    ("area", 3),
)
_CORNERED = (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))

_OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {}) for name in "Adam AdamW NAdam RMSprop Adagrad Adadelta RAdam Adamax SGD".split()),
    ("Adam", {"foreach": True}),
    ("Adam", {"fused": True}),
    ("AdamW", {"fused": True}),
)

ROWS: tuple[ValueCase, ...] = (
    # 181 x 181 is the last square that 16 bits can count.
    *(
        _grid_sample(mode, size)
        for mode in ("nearest", "bilinear", "bicubic")
        for size in ((181, 181), (182, 182), (2, 20000))
    ),
    _grid_sample("nearest", (182, 182), padding="zeros"),
    *(_grid_sample(mode, (2, 182, 182)) for mode in ("nearest", "bilinear")),
    *(_interpolate(mode, dims) for mode, dims in _INTERPOLATIONS),
    *(_interpolate(mode, dims, align_corners=corners) for mode, dims in _CORNERED for corners in (False, True)),
    ValueCase(
        name="adaptive_avg_pool.70x70",
        op=lambda x: functional.adaptive_avg_pool2d(x, 7),
        inputs=lambda: (randn(1, 1, 70, 70, seed="image"),),
    ),
    ValueCase(
        name="affine_grid.540",
        op=lambda theta: functional.affine_grid(theta, [1, 1, 4, 540], align_corners=False),
        inputs=lambda: (torch.eye(2, 3)[None],),
    ),
    ValueCase(name="cdist.far-points", op=_cdist_mm, inputs=lambda: (_matrix()[0], 2 * _matrix()[0])),
    ValueCase(name="cdist.near-points", op=_cdist_mm, inputs=_near_points, devices=_CPU),
    ValueCase(name="matrix_exp", op=torch.linalg.matrix_exp, inputs=_matrix, devices=_CPU),
    ValueCase(
        name="soft_margin_loss",
        op=lambda x: functional.soft_margin_loss(x, torch.full_like(x, -1.0)),
        inputs=lambda: (torch.tensor([1.0, 12.0]),),
        devices=_CPU,
    ),
    *(_optimizer(name, gradient, **settings) for name, settings in _OPTIMIZERS for gradient in (0.0, 1e-4)),
)


def checks_for(case: ValueCase) -> Iterator[Check]:
    yield check_low_precision_value
    if case.in_region:
        yield check_value_in_region


def check_low_precision_value(case: ValueCase, backend: Backend) -> Iterator[Finding]:
    """Called in the low dtype, outside autocast, the op gives the right value."""
    yield from _value(case, backend, nullcontext)


def check_value_in_region(case: ValueCase, backend: Backend) -> Iterator[Finding]:
    """Given the low dtype inside a region, the op gives the right value."""
    yield from _value(case, backend, backend.region)


def _value(case: ValueCase, backend: Backend, region: Callable[[], AbstractContextManager[Any]]) -> Iterator[Finding]:
    low = [tensor.to(device=backend.device_type, dtype=backend.low_dtype) for tensor in case.inputs()]

    def call() -> torch.Tensor:
        with region():
            return case.op(*low)

    out = attempt(f"{case.name} in {backend.dtype}", call).double()
    if case.within is not None:
        lowest, highest = case.within
        outside = int((~((out >= lowest) & (out <= highest))).sum())
        yield exact(
            f"values outside of [{lowest:g}, {highest:g}]",
            actual=outside,
            expected=0,
            why=f"every one of {out.numel()} comes from an image between 1 and 2",
        )
        return
    expected = case.op(*(tensor.double() for tensor in low))
    yield exact(
        "values that are not finite",
        actual=int((~out.isfinite()).sum()),
        expected=int((~expected.to(backend.low_dtype).isfinite()).sum()),
        why="float64's, rounded to the low dtype, on the same rounded input",
    )
    yield bounded(
        "value against float64",
        ratio=error_ratio(out, expected, run_dtype=backend.low_dtype),
        threshold=ACCURACY.value,
        why=f"error in units of {ACCURACY.unit}",
    )
