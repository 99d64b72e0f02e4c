"""Promises that need code of their own: one check for each row of `amp_checks.families.scaler.calls.STORIES`."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_checks.core import Backend, Check, Finding, Raised, attempt, errors, exact, recorded_warnings
from amp_checks.families.scaler.calls import StoryCase
from amp_checks.families.scaler.optimizers.training import difference
from amp_checks.families.scaler.stories.calls import NO_ERROR, backward, error_text, leaf_of, outcome
from amp_checks.families.scaler.stories.fused import (
    check_fused_after_unscale,
    check_fused_float16,
    check_preset_grad_scale,
    check_sparse_float16_is_coalesced,
)
from amp_checks.families.scaler.stories.kernels import (
    check_kernel_arguments,
    check_kernel_arithmetic,
    check_update_kernel_arithmetic,
)
from amp_checks.families.scaler.stories.resume_checks import check_growth_is_capped, check_resume
from amp_checks.torch_api import numerics, private


def checks_for(case: StoryCase) -> Iterator[Check]:
    yield CHECKS[case.story or case.id]


def check_cuda_scaler_without_cuda(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A scaler for cuda: enabled where there is CUDA, else disabled with a warning, and none where it is disabled."""
    here = torch.cuda.is_available()
    kind = type(backend.scaler())

    def construct(enabled: bool) -> Any:
        """The line that the warning must name."""
        return kind("cuda", enabled=enabled)

    unnamed = attempt("GradScaler()", kind)
    told = "a scaler of no named device is enabled"
    yield exact(told, actual=unnamed.is_enabled(), expected=here, why="the default of device is cuda")
    for enabled in (True, False):
        with recorded_warnings() as caught:
            scaler = attempt("GradScaler('cuda')", construct, enabled)
        text = "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling."
        expected = text if enabled and not here else ""
        subject = f"of GradScaler('cuda', enabled={enabled})"
        told = "; ".join(f"{entry.message}" for entry in caught)
        yield exact(f"warning {subject}", actual=told, expected=expected, why=case.source)
        kinds = "; ".join(entry.category.__name__ for entry in caught)
        yield exact(
            f"kind of warning {subject}", actual=kinds, expected="UserWarning" if expected else "", why=case.source
        )
        blamed = all(entry.filename == __file__ for entry in caught)
        yield exact(f"warning {subject} blames its caller", actual=blamed, expected=True, why=case.source)
        yield exact(f"is_enabled {subject}", actual=scaler.is_enabled(), expected=enabled and here, why=case.source)
        if not here:
            yield exact(f"get_scale {subject}", actual=scaler.get_scale(), expected=1.0, why=case.source)
            yield exact(f"entries of the state {subject}", actual=len(scaler.state_dict()), expected=0, why=case.source)


def check_aliases(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``torch.GradScaler``, ``torch.cuda.amp.GradScaler`` and ``torch.cpu.amp.GradScaler``."""
    module = sys.modules[type(backend.scaler()).__module__]
    names = ", ".join(getattr(module, "__all__", ()))
    yield exact("names that the module exports", actual=names, expected="OptState, GradScaler", why=case.source)
    yield exact(
        "torch.GradScaler is torch.amp.GradScaler",
        actual=torch.GradScaler is torch.amp.GradScaler,
        expected=True,
        why=case.source,
    )
    for device, alias in (("cuda", torch.cuda.amp.GradScaler), ("cpu", vars(torch.cpu.amp)["GradScaler"])):
        with recorded_warnings() as caught:
            scaler = attempt(f"torch.{device}.amp.GradScaler()", alias, enabled=False)
        kinds = [entry.category for entry in caught]
        yield exact(
            f"torch.{device}.amp.GradScaler() warns of its deprecation",
            actual=FutureWarning in kinds,
            expected=True,
            why=case.source,
        )
        yield exact(
            f"torch.{device}.amp.GradScaler() is a torch.amp.GradScaler",
            actual=isinstance(scaler, torch.amp.GradScaler),
            expected=True,
            why=case.source,
        )


def check_getters(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Each getter gives what was constructed or set; each setter changes its own value and no other."""
    values: dict[str, float] = {"growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7}
    enabled = case.variant == "enabled"
    scaler = backend.scaler(**values, enabled=enabled)
    for name, value in values.items():
        try:
            seen: Any = attempt(f"get_{name}", getattr(scaler, f"get_{name}"))
        except Raised as raised:
            seen = type(raised.error).__name__
        yield exact(f"get_{name}()", actual=seen, expected=value, why=case.source)
    if not enabled:
        return
    for name, new in (("growth_factor", 4.0), ("backoff_factor", 0.125), ("growth_interval", 3)):
        values[name] = new
        attempt(f"set_{name}", getattr(scaler, f"set_{name}"), new)
        for other, value in values.items():
            got = attempt(f"get_{other}", getattr(scaler, f"get_{other}"))
            yield exact(f"get_{other}() after set_{name}({new})", actual=got, expected=value, why=case.source)
            saved = scaler.state_dict()[other]
            yield exact(f"saved {other} after set_{name}({new})", actual=saved, expected=value, why=case.source)


def check_scaling_is_differentiable(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The scaled loss has a graph; its gradient is the scale; the scale itself requires none."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend, 3.0)
    for outputs in (leaf.sum(), [leaf.sum()]):
        leaf.grad = None
        scaled = attempt("scaler.scale", scaler.scale, outputs)
        loss = scaled[0] if isinstance(scaled, list) else scaled
        kind = type(outputs).__name__
        yield exact(f"scaled {kind} requires grad", actual=loss.requires_grad, expected=True, why=case.source)
        attempt("backward", loss.backward)
        seen = None if leaf.grad is None else leaf.grad.item()
        yield exact(f"gradient through a scaled {kind}", actual=seen, expected=8.0, why=case.source)
    plain = attempt("scaler.scale", scaler.scale, torch.ones(2, device=backend.device_type))
    yield exact("scaled constant requires grad", actual=plain.requires_grad, expected=False, why=case.source)


def check_first_scale_mode(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``scale`` in the variant's mode, then an ordinary iteration."""
    scaler = backend.scaler(init_scale=8.0)
    with getattr(torch, case.variant)():
        attempt("scaler.scale", scaler.scale, torch.ones((), device=backend.device_type))
    leaf = leaf_of(backend)
    seen = outcome("scaler.scale", scaler.scale, leaf.sum())
    yield exact("scaler.scale of a loss", actual=seen, expected=NO_ERROR, why=case.source)
    leaf.grad = torch.full_like(leaf, 8.0)
    seen = outcome("scaler.step", scaler.step, torch.optim.SGD([leaf], lr=1.0))
    yield exact("scaler.step", actual=seen, expected=NO_ERROR, why=case.source)
    seen = outcome("scaler.update", scaler.update)
    yield exact("scaler.update", actual=seen, expected=NO_ERROR, why=case.source)


def check_backward_after_update(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``scale([loss])``, ``update``, and only then ``backward``."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend, 3.0)
    (scaled,) = attempt("scaler.scale", scaler.scale, [leaf.sum()])
    attempt("scaler.update", scaler.update, 2.0)
    seen = outcome("backward", scaled.backward)
    yield exact("backward after update", actual=seen, expected=NO_ERROR, why=case.source)
    gradient = None if leaf.grad is None else leaf.grad.item()
    yield exact("gradient", actual=gradient, expected=8.0, why=case.source)


def check_guards(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Scale without tracker, tracker without scale, a parameter that is no tensor, the tracker of a disabled scaler."""
    loss = torch.ones((), device=backend.device_type)
    scaler = backend.scaler()
    scaler.scale(loss)
    private.set_growth_tracker(scaler, None)
    fix = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
    expected = f"AssertionError: Attempted update but _growth_tracker is None.  {fix}"
    seen = outcome("scaler.update", scaler.update)
    yield exact("update without a tracker", actual=seen, expected=expected, why=case.source)
    for outputs in (loss, [loss]):
        scaler = backend.scaler()
        private.set_growth_tracker(scaler, loss)
        seen = outcome("scaler.scale", scaler.scale, outputs)
        expected = "AssertionError: _growth_tracker initialized before _scale"
        told = f"scale of a {type(outputs).__name__} with a tracker and no scale"
        yield exact(told, actual=seen, expected=expected, why=case.source)
    scaler = backend.scaler()
    optimizer = torch.optim.SGD([leaf_of(backend)], lr=1.0)
    optimizer.param_groups[0]["params"].append("text")
    scaler.scale(loss)
    seen = outcome("scaler.unscale_", scaler.unscale_, optimizer)
    expected = "AssertionError: expected param to be torch.Tensor, got str"
    yield exact("unscale_ with a parameter that is text", actual=seen, expected=expected, why=case.source)
    disabled = backend.scaler(enabled=False)
    seen = outcome("the tracker", private.get_growth_tracker, disabled)
    yield exact("reading the tracker of a disabled scaler", actual=seen, expected=NO_ERROR, why=case.source)
    if seen == NO_ERROR:
        tracker = private.get_growth_tracker(disabled)
        yield exact("tracker of a disabled scaler", actual=tracker, expected=0, why=case.source)


def check_gradient_penalty(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Two steps with a penalty on the gradient's norm, with a scaler as the notes have it, and without."""
    results = []
    for scaled in (True, False):
        scaler = backend.scaler(init_scale=1024.0, growth_interval=1, enabled=scaled)
        weight = numerics.randn(3, seed="gradient penalty", device=backend.device_type).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.125)
        for number in range(2):
            batch = numerics.randn(3, seed=f"gradient penalty {number}", device=backend.device_type)
            loss = (weight * batch).tanh().sum()
            outputs = attempt("scaler.scale", scaler.scale, loss)
            (gradient,) = torch.autograd.grad(outputs, [weight], create_graph=True)
            penalty = (gradient * (1.0 / scaler.get_scale())).square().sum()
            optimizer.zero_grad()
            attempt("scaler.scale", scaler.scale, loss + penalty).backward()
            attempt("scaler.step", scaler.step, optimizer)
            attempt("scaler.update", scaler.update)
        results.append(weight.detach())
        yield exact(
            f"scale after two steps, enabled={scaled}",
            actual=scaler.get_scale(),
            expected=4096.0 if scaled else 1.0,
            why=case.source,
        )
    same = difference(*results) or "those without a scaler"
    yield exact("parameters", actual=same, expected="those without a scaler", why=case.source)


def check_clip_by_norm(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The norm that clipping returns, and the parameters after it, with a scaler and without."""
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
        same = difference(actual, expected) or "that without a scaler"
        yield exact(name, actual=same, expected="that without a scaler", why=case.source)


def check_unscaled_once(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A gradient of 1, scaled by 8: after ``unscale_``, also by a second scaler, it must be 1 again."""
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
    yield exact("gradient", actual=gradient.item(), expected=1.0, why=case.source)


class _Answering(torch.optim.SGD):
    """An optimizer whose step returns what it was called with."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        super().step()
        return (args, kwargs)


def check_arguments_of_step(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Positional and keyword arguments, with an enabled scaler and a disabled one."""
    for enabled in (True, False):
        scaler = backend.scaler(enabled=enabled)
        leaf = leaf_of(backend)
        optimizer = _Answering([leaf], lr=1.0)
        backward(scaler, leaf)
        answer = attempt("scaler.step", scaler.step, optimizer, 1, "two", three=3)
        yield exact(
            f"what step returned, enabled={enabled}",
            actual=repr(answer),
            expected=repr(((1, "two"), {"three": 3})),
            why=case.source,
        )


def check_skip_runs_no_hooks(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Hooks before and after a step: once for a good one, not for a skipped one."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend)
    optimizer = torch.optim.SGD([leaf], lr=1.0, fused=case.variant == "fused")
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for weight, expected in ((1.0, "before, after"), (float("inf"), "")):
        calls.clear()
        optimizer.zero_grad()
        backward(scaler, leaf, weight)
        attempt("scaler.step", scaler.step, optimizer)
        attempt("scaler.update", scaler.update)
        yield exact(f"hooks of a step on {weight}", actual=", ".join(calls), expected=expected, why=case.source)


def check_closure_is_refused(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A closure, which the optimizer would call on unscaled losses, by keyword or as the second argument."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend)
    optimizer = torch.optim.SGD([leaf], lr=1.0)
    backward(scaler, leaf)
    if case.variant == "keyword":
        seen = outcome("scaler.step", scaler.step, optimizer, closure=lambda: 0.0)
    else:
        seen = outcome("scaler.step", scaler.step, optimizer, lambda: 0.0)
    expected = "RuntimeError: Closure use is not currently supported if GradScaler is enabled."
    yield exact(f"step with a {case.variant} closure", actual=seen, expected=expected, why=case.source)


def check_lbfgs(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """LBFGS with a closure, without one, and with one under a disabled scaler."""
    refused = "RuntimeError: Closure use is not currently supported if GradScaler is enabled."
    missing = "TypeError: "
    for enabled, keywords, expected in (
        (True, {"closure": lambda: 0.0}, refused),
        (True, {}, missing),
        (False, {"closure": lambda: torch.zeros((), device=backend.device_type)}, NO_ERROR),
    ):
        scaler = backend.scaler(init_scale=8.0, enabled=enabled)
        leaf = leaf_of(backend)
        optimizer = torch.optim.LBFGS([leaf], lr=1.0, max_iter=1)
        backward(scaler, leaf)
        seen = outcome("scaler.step", scaler.step, optimizer, **keywords)
        yield exact(
            f"scaler.step(lbfgs{', closure' if keywords else ''}), enabled={enabled}",
            actual=seen[: len(missing)] if expected == missing else seen,
            expected=expected,
            why=case.source,
        )


class _TakesScaler(torch.optim.SGD):
    _step_supports_amp_scaling = True
    scaler: Any = None

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:
        self.scaler = grad_scaler
        return super().step(closure)


def check_scaler_argument_warns(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The text of the warning, whom it blames, and what the optimizer is handed."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend)
    optimizer = _TakesScaler([leaf], lr=1.0)
    backward(scaler, leaf)
    with recorded_warnings() as caught:
        attempt("scaler.step", scaler.step, optimizer)
    told = "; ".join(f"{entry.category.__name__}: {entry.message}" for entry in caught)
    expected = (
        "FutureWarning: GradScaler is going to stop passing itself as a keyword argument to the passed "
        "optimizer. In the near future GradScaler registers `grad_scale: Tensor` and "
        "`found_inf: Tensor` to the passed optimizer and let the optimizer use them directly."
    )
    yield exact("warning", actual=told, expected=expected, why=case.source)
    blamed = all(entry.filename == errors.__file__ for entry in caught)
    yield exact("the warning blames the caller of step", actual=blamed, expected=True, why=case.source)
    handed = optimizer.scaler is scaler
    yield exact("the optimizer was handed the scaler", actual=handed, expected=True, why=case.source)


def _update_outcome(backend: Backend, new_scale: Any) -> str:
    scaler = backend.scaler(init_scale=8.0)
    scaler.scale(torch.ones((), device=backend.device_type))
    seen = outcome("scaler.update", scaler.update, new_scale)
    return f"scale {scaler.get_scale()}" if seen == NO_ERROR else seen


def check_new_scale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """What ``update(new_scale)`` takes and refuses."""
    device = backend.device_type
    if case.variant == "shape 1":
        seen = _update_outcome(backend, torch.tensor([4.0], device=device))
        yield exact("update with a tensor of shape [1]", actual=seen, expected="scale 4.0", why=case.source)
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
        yield exact(f"update with {name}", actual=_update_outcome(backend, value), expected=expected, why=case.source)
    scaler = backend.scaler(init_scale=8.0)
    scaler.scale(torch.ones((), device=backend.device_type))
    given = torch.tensor(4.0, device=device)
    attempt("scaler.update", scaler.update, given)
    given.fill_(2.0)
    yield exact("scale after the tensor changed", actual=scaler.get_scale(), expected=4.0, why=case.source)


def check_state_dict_entries(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Names, types and values of the entries, before and after a step; a saved state does not move."""
    scaler = backend.scaler(init_scale=8.0, growth_interval=10)
    saved = scaler.state_dict()
    expected = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 10, "_growth_tracker": 0}
    yield exact("state before the first scale", actual=repr(saved), expected=repr(expected), why=case.source)
    leaf = leaf_of(backend)
    optimizer = torch.optim.SGD([leaf], lr=1.0)
    for weight in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        backward(scaler, leaf, weight)
        scaler.step(optimizer)
        scaler.update()
    later = {**expected, "scale": 4.0, "_growth_tracker": 1}
    yield exact("state after steps", actual=repr(scaler.state_dict()), expected=repr(later), why=case.source)
    yield exact("state saved before", actual=repr(saved), expected=repr(expected), why=case.source)


def check_load_state(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A whole state is taken, by a live scaler and a new one; one that lacks an entry changes nothing."""
    saved = {
        "scale": 32.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
        "_growth_tracker": 2,
    }
    if case.variant == "complete":
        for live in (True, False):
            scaler = backend.scaler(init_scale=8.0)
            if live:
                scaler.scale(torch.ones((), device=backend.device_type))
            attempt("scaler.load_state_dict", scaler.load_state_dict, saved)
            scaler.scale(torch.ones((), device=backend.device_type))
            told = f"state of a {'live' if live else 'new'} scaler"
            yield exact(told, actual=repr(scaler.state_dict()), expected=repr(saved), why=case.source)
        return
    for name in saved:
        scaler = backend.scaler(init_scale=8.0)
        scaler.scale(torch.ones((), device=backend.device_type))
        before = repr(scaler.state_dict())
        lacking = {other: value for other, value in saved.items() if other != name}
        seen = outcome("scaler.load_state_dict", scaler.load_state_dict, lacking)
        yield exact(f"loading without {name}", actual=seen, expected=f"KeyError: '{name}'", why=case.source)
        after = repr(scaler.state_dict())
        yield exact(f"state after loading without {name}", actual=after, expected=before, why=case.source)


def check_copy_after_reading_found_inf(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``_found_inf_per_device`` is what optimizers that take the scaler read; it makes an entry for the optimizer."""
    scaler = backend.scaler(init_scale=8.0)
    leaf = leaf_of(backend)
    optimizer = torch.optim.SGD([leaf], lr=1.0)
    scaler.scale(torch.ones((), device=backend.device_type))
    told = _flags(scaler, private.found_inf_per_device, optimizer)
    yield exact("flags before a check", actual=told, expected="[]", why=case.source)
    seen = outcome("pickle.dumps", pickle.dumps, scaler)
    expected = (
        "AssertionError: A GradScaler instance may only be pickled at the beginning of an iteration, or at the end "
        "after scaler.update()."
    )
    yield exact("pickling after reading the flags", actual=seen, expected=expected, why=case.source)
    backward(scaler, leaf, float("inf"))
    attempt("scaler.unscale_", scaler.unscale_, optimizer)
    told = _flags(scaler, private.found_inf_per_device, optimizer)
    yield exact("flags after unscale_ found inf", actual=told, expected="[1.0]", why=case.source)
    told = _flags(scaler, private.check_inf_per_device, optimizer)
    yield exact("flags that a check gives back", actual=told, expected="[1.0]", why=case.source)
    told = _flags(backend.scaler(), private.check_inf_per_device, optimizer)
    expected = (
        "AssertionError: Attempted _check_inf_per_device but _scale is None.  This may indicate your script did not "
        "use scaler.scale(loss or outputs) earlier in the iteration."
    )
    yield exact("checking before the first scale", actual=told, expected=expected, why=case.source)


def _flags(
    scaler: Any,
    read: Callable[[Any, torch.optim.Optimizer], dict[torch.device, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
) -> str:
    """The flags of all devices as text, or the error of reading them."""
    try:
        return repr(attempt("the flags", lambda: [flag.item() for flag in read(scaler, optimizer).values()]))
    except Raised as raised:
        return error_text(raised)


def check_scheduler_after_skip(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A first step that is skipped leaves the optimizer's count at 0, and the scheduler warns; the rate moves on."""
    for weight, warns in ((float("inf"), True), (1.0, False)):
        scaler = backend.scaler(init_scale=8.0)
        leaf = leaf_of(backend)
        optimizer = torch.optim.SGD([leaf], lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        backward(scaler, leaf, weight)
        attempt("scaler.step", scaler.step, optimizer)
        attempt("scaler.update", scaler.update)
        with recorded_warnings() as caught:
            scheduler.step()
        seen = any("`lr_scheduler.step()` before `optimizer.step()`" in str(entry.message) for entry in caught)
        yield exact(f"the scheduler warns after a step on {weight}", actual=seen, expected=warns, why=case.source)
        rate = optimizer.param_groups[0]["lr"]
        yield exact(f"learning rate after a step on {weight}", actual=rate, expected=0.5, why=case.source)


def check_several_devices(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """CPU and meta stand in for two devices: outputs stay on theirs, and each device's gradients get a flag there."""
    scaler = backend.scaler(init_scale=8.0)
    here, there = torch.ones((), device=backend.device_type), torch.ones((), device="meta")
    for outputs, expected in (
        ([here, there, there], "cpu, meta, meta"),
        ([there, here], "meta, cpu"),
        ([there], "meta"),
    ):
        scaled = attempt("scaler.scale", scaler.scale, outputs)
        devices = ", ".join(each.device.type for each in scaled)
        yield exact("devices of scaled outputs", actual=devices, expected=expected, why=case.source)
    lone = attempt("scaler.scale", scaler.scale, there)
    yield exact("device of a lone scaled output", actual=lone.device.type, expected="meta", why=case.source)
    leaf, far = leaf_of(backend, 1.0), torch.ones(2, device="meta", requires_grad=True)
    optimizer = torch.optim.SGD([leaf, far], lr=1.0)
    leaf.grad, far.grad = torch.full((1,), 8.0, device=backend.device_type), torch.ones(2, device="meta")
    attempt("scaler.unscale_", scaler.unscale_, optimizer)
    flags = private.found_inf_per_device(scaler, optimizer)
    yield exact(
        "devices with a flag",
        actual=", ".join(f"{device.type}: {flag.device.type}" for device, flag in flags.items()),
        expected="cpu: cpu, meta: meta",
        why=case.source,
    )
    yield exact("gradient on the CPU", actual=leaf.grad.item(), expected=1.0, why=case.source)


CHECKS: dict[str, Check] = {
    "cuda-scaler-without-cuda": check_cuda_scaler_without_cuda,
    "getters": check_getters,
    "first-scale-mode": check_first_scale_mode,
    "unscaled-once": check_unscaled_once,
    "closure": check_closure_is_refused,
    "new-scale": check_new_scale,
    "load-state": check_load_state,
    "aliases": check_aliases,
    "scaling-is-differentiable": check_scaling_is_differentiable,
    "backward-after-update": check_backward_after_update,
    "guards": check_guards,
    "gradient-penalty": check_gradient_penalty,
    "clip-by-norm": check_clip_by_norm,
    "kernel-arguments": check_kernel_arguments,
    "kernel-arithmetic": check_kernel_arithmetic,
    "update-kernel-arithmetic": check_update_kernel_arithmetic,
    "arguments-of-step": check_arguments_of_step,
    "hooks-on-skip": check_skip_runs_no_hooks,
    "lbfgs": check_lbfgs,
    "fused-float16": check_fused_float16,
    "fused-unscaled-before": check_fused_after_unscale,
    "scale-on-fused-optimizer": check_preset_grad_scale,
    "sparse-float16-of-scaling-optimizer": check_sparse_float16_is_coalesced,
    "scaler-argument-warning": check_scaler_argument_warns,
    "state-dict-entries": check_state_dict_entries,
    "copy-after-reading-found-inf": check_copy_after_reading_found_inf,
    "scheduler-after-skip": check_scheduler_after_skip,
    "resume": check_resume,
    "growth-capped": check_growth_is_capped,
    "several-devices": check_several_devices,
}
