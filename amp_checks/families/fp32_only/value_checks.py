"""The value of an op in 16 bits: outside autocast, and inside a region that is given the low dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from amp_checks.core import Backend, Check, Finding, attempt, bounded, exact
from amp_checks.families.fp32_only.values import ValueCase
from amp_checks.torch_api.numerics import Threshold, error_ratio

ACCURACY = Threshold(
    value=2.0,
    unit="eps(low dtype) * max|float64 reference|",
    healthy="0 to 0.76 over all rows without a known defect (affine_grid in bfloat16), torch 2.13.0 on a CPU",
    weakest_mutant="a float16 kernel that computes in bfloat16: 4.3 on bilinear interpolation",
    measured="amp-checks run --family fp32-only; the mutant low-precision-kernel-keeps-eight-bits",
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
