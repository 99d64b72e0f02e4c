"""What a scaler refuses: closures, new scales of the wrong kind, an inconsistent internal state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Finding, attempt
from amp_checks.families.scaler.rows import ERRORS, NO_ERROR, STEP, UPDATE, outcome
from amp_checks.families.scaler.stories.story import Loop, StoryCase, leaf_of, story
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend

NO_CLOSURES = f"{STEP}: closure use is not currently supported"
CLOSURE_REFUSED = "RuntimeError: Closure use is not currently supported if GradScaler is enabled."


@story("positional-closure", 25, source=NO_CLOSURES, variant="positional")
@story("keyword-closure", 25, source=NO_CLOSURES, variant="keyword")
def check_closure_is_refused(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A closure, which the optimizer would call on unscaled losses, is refused, however it is passed."""
    loop = Loop(backend)
    loop.backward()
    keyword = case.variant == "keyword"
    seen = outcome(loop.step, closure=lambda: 0.0) if keyword else outcome(loop.step, lambda: 0.0)
    yield case.exact(f"step with a {case.variant} closure", actual=seen, expected=CLOSURE_REFUSED)


@story("lbfgs", 25, source=NO_CLOSURES)
def check_lbfgs(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """LBFGS, which needs a closure, cannot be stepped with one, nor without; under a disabled scaler it can."""
    missing = "TypeError: "
    for enabled, keywords, expected in (
        (True, {"closure": lambda: 0.0}, CLOSURE_REFUSED),
        (True, {}, missing),
        (False, {"closure": lambda: torch.zeros((), device=backend.device_type)}, NO_ERROR),
    ):
        loop = Loop(backend, optimizer=torch.optim.LBFGS, max_iter=1, settings={"enabled": enabled})
        loop.backward()
        seen = outcome(loop.step, **keywords)
        yield case.exact(
            f"scaler.step(lbfgs{', closure' if keywords else ''}), enabled={enabled}",
            actual=seen[: len(missing)] if expected == missing else seen,
            expected=expected,
        )


def _after_update(backend: Backend, new_scale: Any) -> str:
    scaler = backend.scaler(init_scale=8.0)
    scaler.scale(torch.ones((), device=backend.device_type))
    seen = outcome(scaler.update, new_scale)
    return f"scale {scaler.get_scale()}" if seen == NO_ERROR else seen


@story("new-scale-shape-1", 41, source=f"{UPDATE}: 1-element tensor", variant="shape 1")
@story("new-scale-kinds", 41, source=UPDATE, variant="kinds")
def check_new_scale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``new_scale`` is a float or a 1-element tensor that requires no gradient, copied by value."""
    device = backend.device_type
    if case.variant == "shape 1":
        seen = _after_update(backend, torch.tensor([4.0], device=device))
        yield case.exact("update with a tensor of shape [1]", actual=seen, expected="scale 4.0")
        return
    refused = (
        "AssertionError: new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with "
        "requires_grad=False."
    )
    kinds: tuple[tuple[str, Any, str], ...] = (
        ("a float", 4.0, "scale 4.0"),
        ("a float32 scalar", torch.tensor(4.0, device=device), "scale 4.0"),
        ("a float64 scalar", torch.tensor(4.0, dtype=torch.float64, device=device), "scale 4.0"),
        ("an int64 scalar", torch.tensor(4, device=device), "scale 4.0"),
        ("two elements", torch.tensor([4.0, 4.0], device=device), refused),
        ("no element", torch.tensor([], device=device), refused),
        ("a scalar that requires grad", torch.tensor(4.0, requires_grad=True, device=device), refused),
        ("a scalar on another device", torch.tensor(4.0, device="meta"), refused),
        ("an int", 4, "AttributeError: 'int' object has no attribute 'device'"),
    )
    for name, value, expected in kinds:
        yield case.exact(f"update with {name}", actual=_after_update(backend, value), expected=expected)
    scaler = backend.scaler(init_scale=8.0)
    scaler.scale(torch.ones((), device=device))
    given = torch.tensor(4.0, device=device)
    attempt("scaler.update", scaler.update, given)
    given.fill_(2.0)
    yield case.exact("scale after the tensor changed", actual=scaler.get_scale(), expected=4.0)


@story("guards", 13, source=ERRORS)
def check_guards(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Scale without tracker, tracker without scale, a parameter that is no tensor, the tracker of a disabled scaler."""
    loss = torch.ones((), device=backend.device_type)
    scaler = backend.scaler()
    scaler.scale(loss)
    private.set_growth_tracker(scaler, None)
    fix = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
    expected = f"AssertionError: Attempted update but _growth_tracker is None.  {fix}"
    yield case.exact("update without a tracker", actual=outcome(scaler.update), expected=expected)
    for outputs in (loss, [loss]):
        scaler = backend.scaler()
        private.set_growth_tracker(scaler, loss)
        expected = "AssertionError: _growth_tracker initialized before _scale"
        subject = f"scale of a {type(outputs).__name__} with a tracker and no scale"
        yield case.exact(subject, actual=outcome(scaler.scale, outputs), expected=expected)
    scaler = backend.scaler()
    optimizer = torch.optim.SGD([leaf_of(backend)], lr=1.0)
    optimizer.param_groups[0]["params"].append("text")
    scaler.scale(loss)
    seen = outcome(scaler.unscale_, optimizer)
    expected = "AssertionError: expected param to be torch.Tensor, got str"
    yield case.exact("unscale_ with a parameter that is text", actual=seen, expected=expected)
    disabled = backend.scaler(enabled=False)
    seen = outcome(private.get_growth_tracker, disabled)
    yield case.exact("reading the tracker of a disabled scaler", actual=seen, expected=NO_ERROR)
    if seen == NO_ERROR:
        tracker = private.get_growth_tracker(disabled)
        yield case.exact("tracker of a disabled scaler", actual=tracker, expected=0)
