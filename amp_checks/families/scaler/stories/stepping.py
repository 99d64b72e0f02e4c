"""``unscale_`` and ``step``: how often gradients are unscaled, what is handed on, what a skipped step leaves undone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Finding, attempt, errors, recorded_warnings
from amp_checks.families.scaler.bits import same
from amp_checks.families.scaler.rows import EXAMPLES, STEP, UNSCALE
from amp_checks.families.scaler.stories.story import Loop, StoryCase, leaf_of, story
from amp_checks.torch_api import numerics
from amp_checks.torch_api.backend import Backend


@story("clip-by-norm", 15, 23, source=f"{EXAMPLES}, gradient clipping")
def check_clip_by_norm(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The norm that clipping returns after ``unscale_``, and the parameters after it, are those without a scaler."""
    results = []
    for scaled in (True, False):
        scaler = backend.scaler(init_scale=1024.0, enabled=scaled)
        leaf = numerics.randn(5, seed="clip", device=backend.device_type).requires_grad_()
        optimizer = torch.optim.SGD([leaf], lr=0.125)
        weight = numerics.randn(5, seed="clip weight", device=backend.device_type)
        attempt("scaler.scale", scaler.scale, (leaf * weight).sum()).backward()
        attempt("scaler.unscale_", scaler.unscale_, optimizer)
        norm = torch.nn.utils.clip_grad_norm_([leaf], 0.5)
        attempt("scaler.step", scaler.step, optimizer)
        results.append((norm, leaf.detach()))
    for name, actual, expected in zip(("norm", "parameters"), *results, strict=True):
        yield same(name, actual, expected, "that without a scaler", why=case.source)


@story("two-scalers-one-optimizer", 21, source=UNSCALE, variant="two scalers")
@story("two-parameters-one-gradient", 21, source=UNSCALE, variant="two parameters")
@story("one-parameter-one-gradient", 21, source=UNSCALE, variant="one parameter")
def check_unscaled_once(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A gradient of 1, scaled by 8, is 1 again after ``unscale_``: of two parameters or two scalers, too."""
    scaler, second = backend.scaler(init_scale=8.0), backend.scaler(init_scale=4.0)
    leaves = [leaf_of(backend, 1.0) for _ in range(2 if case.variant == "two parameters" else 1)]
    optimizer = torch.optim.SGD(leaves, lr=1.0)
    gradient = attempt("scaler.scale", scaler.scale, torch.ones(1, device=backend.device_type))
    for leaf in leaves:
        leaf.grad = gradient
    attempt("scaler.unscale_", scaler.unscale_, optimizer)
    if case.variant == "two scalers":
        second.scale(torch.ones((), device=backend.device_type))
        attempt("scaler.unscale_ of a second scaler", second.unscale_, optimizer)
    yield case.exact("gradient", actual=gradient.item(), expected=1.0)


class _Answering(torch.optim.SGD):
    """An optimizer whose step returns what it was called with."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        super().step()
        return (args, kwargs)


class _AnsweringFused(_Answering):
    """The same, of those that unscale by themselves: it makes no step."""

    _step_supports_amp_scaling = True

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return (args, kwargs)


@story("arguments-of-fused-step", 23, 29, source=f"{STEP}: *args and **kwargs are forwarded", variant="fused")
@story("arguments-of-step", 23, source=f"{STEP}: *args and **kwargs are forwarded")
def check_arguments_of_step(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``step`` hands its arguments on, and gives back what the optimizer gave; enabled or not."""
    optimizer = _AnsweringFused if case.variant == "fused" else _Answering
    for enabled in (True, False):
        loop = Loop(backend, optimizer=optimizer, settings={"enabled": enabled})
        loop.backward()
        answer = repr(loop.step(1, "two", three=3))
        expected = repr(((1, "two"), {"three": 3}))
        yield case.exact(f"what step returned, enabled={enabled}", actual=answer, expected=expected)


@story("hooks-on-fused-skip", 29, source=STEP, variant="fused")
@story("hooks-on-skip", 24, source=STEP, variant="for-loop")
def check_skip_runs_no_hooks(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Hooks before and after a step: once for a good one, not for a skipped one."""
    loop = Loop(backend, fused=case.variant == "fused")
    calls: list[str] = []
    loop.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    loop.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for weight, expected in ((1.0, "before, after"), (float("inf"), "")):
        calls.clear()
        loop.iterate(weight)
        yield case.exact(f"hooks of a step on {weight}", actual=", ".join(calls), expected=expected)


class _TakesScaler(torch.optim.SGD):
    _step_supports_amp_scaling = True
    scaler: Any = None

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:
        self.scaler = grad_scaler
        return super().step(closure)


@story("scaler-argument-warning", 33, source=f"{STEP}: the text of its warning")
def check_scaler_argument_warns(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """An optimizer that takes ``grad_scaler`` is handed the scaler, and ``step`` warns, blaming its caller."""
    scaler, leaf = backend.scaler(init_scale=8.0), leaf_of(backend)
    optimizer = _TakesScaler([leaf], lr=1.0)
    attempt("scaler.scale", scaler.scale, leaf.sum()).backward()
    with recorded_warnings() as caught:
        attempt("scaler.step", scaler.step, optimizer)
    texts = "; ".join(f"{entry.category.__name__}: {entry.message}" for entry in caught)
    expected = (
        "FutureWarning: GradScaler is going to stop passing itself as a keyword argument to the passed "
        "optimizer. In the near future GradScaler registers `grad_scale: Tensor` and "
        "`found_inf: Tensor` to the passed optimizer and let the optimizer use them directly."
    )
    yield case.exact("warning", actual=texts, expected=expected)
    # `attempt` calls step.
    blamed = all(entry.filename == errors.__file__ for entry in caught)
    yield case.exact("the warning blames the caller of step", actual=blamed, expected=True)
    handed = optimizer.scaler is scaler
    yield case.exact("the optimizer was handed the scaler", actual=handed, expected=True)


@story("scheduler-after-skip", 47, source="https://github.com/pytorch/pytorch/issues/44511")
def check_scheduler_after_skip(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A first step that is skipped leaves the optimizer's count at 0, and the scheduler warns; the rate moves on."""
    for weight, warns in ((float("inf"), True), (1.0, False)):
        loop = Loop(backend)
        scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, 0.5)
        loop.iterate(weight)
        with recorded_warnings() as caught:
            scheduler.step()
        seen = any("`lr_scheduler.step()` before `optimizer.step()`" in str(entry.message) for entry in caught)
        yield case.exact(f"the scheduler warns after a step on {weight}", actual=seen, expected=warns)
        rate = loop.optimizer.param_groups[0]["lr"]
        yield case.exact(f"learning rate after a step on {weight}", actual=rate, expected=0.5)
