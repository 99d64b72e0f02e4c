"""The two kernels under a gradient scaler, called as the scaler calls them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from amp_checks.core import Finding, attempt
from amp_checks.families.scaler.rows import OBSERVED, UPDATE, outcome
from amp_checks.families.scaler.stories.story import StoryCase, story
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend


@story("kernel-arguments", 22, source="torch._amp_foreach_non_finite_check_and_unscale_: the text of its errors")
def check_kernel_arguments(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The check kernel refuses scales and flags that are not one float32 element: two elements, or float64."""
    device = backend.device_type
    one, two = torch.ones((), device=device), torch.ones(2, device=device)
    wide = torch.ones((), dtype=torch.float64, device=device)
    for name, found_inf, inverse, expected in (
        ("a flag of two elements", two, one, "found_inf must be a 1-element tensor."),
        ("a scale of two elements", one, two, "inv_scale must be a 1-element tensor."),
        ("a float64 flag", wide, one, "found_inf must be a float tensor."),
        ("a float64 scale", one, wide, "inv_scale must be a float tensor."),
    ):
        seen = outcome(private.check_and_unscale, [torch.ones(2, device=device)], found_inf, inverse)
        yield case.exact(name, actual=seen, expected=f"RuntimeError: {expected}")


@story("kernel-arithmetic", 22, source=OBSERVED)
def check_kernel_arithmetic(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """What flag and gradients are afterwards: found_inf is sticky; small float16 gradients flush to 0."""
    device, check = backend.device_type, private.check_and_unscale
    for name, values, before, inverse, flag, after in (
        ("finite", [2.0, -4.0], 0.0, 0.5, 0.0, [1.0, -2.0]),
        ("flag set before", [2.0], 1.0, 0.5, 1.0, [1.0]),
        ("inf", [math.inf, 4.0], 0.0, 0.5, 1.0, [math.inf, 2.0]),
        ("-inf", [4.0, -math.inf], 0.0, 0.5, 1.0, [2.0, -math.inf]),
        ("nan", [4.0, math.nan], 0.0, 0.5, 1.0, [2.0, math.nan]),
        ("inverse scale 1", [3.0], 0.0, 1.0, 0.0, [3.0]),
        ("empty", [], 0.0, 0.5, 0.0, []),
    ):
        found_inf, gradient = torch.tensor(before, device=device), torch.tensor(values, device=device)
        attempt(name, check, [torch.ones(1, device=device), gradient], found_inf, torch.tensor(inverse, device=device))
        yield case.exact(f"flag, {name}", actual=found_inf.item(), expected=flag)
        yield case.exact(f"gradient, {name}", actual=repr(gradient.tolist()), expected=repr(after))
    found_inf, small = torch.zeros((), device=device), torch.full((1,), 6e-8, dtype=torch.float16, device=device)
    attempt("small float16", check, [small], found_inf, torch.tensor(2.0**-10, device=device))
    yield case.exact("flag, small float16", actual=found_inf.item(), expected=0.0)
    yield case.exact("gradient, small float16", actual=small.item(), expected=0.0)


@story("update-kernel-arithmetic", 35, 36, source=UPDATE)
def check_update_kernel_arithmetic(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Scale and tracker afterwards; arguments are scale, tracker, flag, growth factor, backoff factor, interval."""
    device = backend.device_type
    for name, (scale, tracker, flag), factors_and_interval, expected in (
        ("clean", (8.0, 0, 0.0), (2.0, 0.5, 3), (8.0, 1)),
        ("growth", (8.0, 2, 0.0), (3.0, 0.5, 3), (24.0, 0)),
        ("growth beyond float32", (3e38, 2, 0.0), (2.0, 0.5, 3), (torch.tensor(3e38).item(), 0)),
        ("inf", (8.0, 2, 1.0), (2.0, 0.25, 3), (2.0, 0)),
        ("inf on two devices", (8.0, 2, 2.0), (2.0, 0.25, 3), (2.0, 0)),
        ("backoff to subnormal", (1e-45, 0, 1.0), (2.0, 0.5, 3), (0.0, 0)),
    ):
        scale_, tracker_ = torch.tensor(scale, device=device), torch.tensor(tracker, dtype=torch.int32, device=device)
        found_inf = torch.tensor(flag, device=device)
        returned = attempt(name, private.update_scale, scale_, tracker_, found_inf, *factors_and_interval)
        after = repr((scale_.item(), tracker_.item()))
        yield case.exact(f"scale and tracker, {name}", actual=after, expected=repr(expected))
        yield case.exact(f"returns the scale, {name}", actual=returned is scale_, expected=True)
