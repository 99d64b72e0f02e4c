"""What a scaler must hand on as the very object it was given, and leave as it is: equal is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from amp_checks.core import Finding, attempt
from amp_checks.families.scaler.rows import CLASS, NO_ERROR, SCALE, STEP, UNSCALE, outcome
from amp_checks.families.scaler.stories.story import Loop, StoryCase, leaf_of, story
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend


class _Outputs(list[torch.Tensor]):
    """A list of another type."""


@story("disabled-scale-hands-back", 11, 43, source=f"{SCALE}: outputs unmodified where the scaler is not enabled")
def check_disabled_scale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Disabled, ``scale`` gives back its argument itself, and leaves what is inside it as it is."""
    scaler = backend.scaler(enabled=False)
    leaf = leaf_of(backend)
    one, two = leaf.sum(), torch.ones(2, device=backend.device_type)
    for outputs in (one, two, [one, two], (one, two), [(one,), two], _Outputs([one]), {"loss": one}, iter([one])):
        name = type(outputs).__name__
        held = list(outputs) if isinstance(outputs, list | tuple) else []
        given = attempt("scaler.scale", scaler.scale, outputs)
        yield case.exact(f"the very {name}", actual=given is outputs, expected=True)
        kept = all(map(_same_object, held, outputs)) if held else True
        yield case.exact(f"what is inside the {name}", actual=kept, expected=True)
    yield case.exact("writes to the tensors", actual=private.version_of(one) + private.version_of(two), expected=0)


def _same_object(one: object, other: object) -> bool:
    return one is other


@story("disabled-unscale-leaves-gradients", 43, source=f"{CLASS}: enabled=False makes other methods no-ops")
def check_disabled_unscale(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Disabled, ``unscale_``, ``step`` and ``update`` leave the gradients' objects and values, and return nothing."""
    loop = Loop(backend, settings={"enabled": False})
    loop.backward(3.0)
    gradient = loop.leaf.grad
    assert gradient is not None
    writes = private.version_of(gradient)
    for name, call in (
        ("unscale_", lambda: loop.scaler.unscale_(loop.optimizer)),
        ("step", lambda: loop.scaler.step(loop.optimizer)),
        ("update", loop.scaler.update),
    ):
        returned = attempt(f"scaler.{name}", call)
        yield case.exact(f"what {name} returned", actual=repr(returned), expected="None")
        yield case.exact(f"the gradient after {name}", actual=loop.leaf.grad is gradient, expected=True)
    yield case.exact("writes to the gradient", actual=private.version_of(gradient) - writes, expected=0)
    yield case.exact("its value", actual=str(gradient.tolist()), expected="[3.0, 3.0]")


@story("scale-leaves-outputs", 9, 10, source=f"{SCALE}: returns scaled outputs")
def check_scale_leaves_outputs(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Enabled, ``scale`` gives new tensors, in new containers of the same type; what it was given stays as it is."""
    scaler = backend.scaler(init_scale=8.0)
    one, two = (torch.ones(2, device=backend.device_type) for _ in range(2))
    single = attempt("scaler.scale", scaler.scale, one)
    yield case.exact("a new tensor", actual=single is not one, expected=True)
    for outputs, expected in (
        ([one, [two]], "list(list)"),
        ((one, (two,)), "tuple(tuple)"),
        (_Outputs([one]), "_Outputs()"),
    ):
        before: list[Any] = list(outputs)
        given = attempt("scaler.scale", scaler.scale, outputs)
        yield case.exact(f"type of a scaled {type(outputs).__name__}", actual=_types(given), expected=expected)
        kept = given is not outputs and all(map(_same_object, before, outputs))
        yield case.exact(f"the {type(outputs).__name__} is as it was", actual=kept, expected=True)
    yield case.exact("writes to the tensors", actual=private.version_of(one) + private.version_of(two), expected=0)
    yield case.exact("their values", actual=f"{one.tolist()} {two.tolist()}", expected="[1.0, 1.0] [1.0, 1.0]")


def _types(container: Any) -> str:
    inner = [_types(each).removesuffix("()") for each in container if not isinstance(each, torch.Tensor)]
    return f"{type(container).__name__}({', '.join(inner)})"


@story("unscale-keeps-objects", 15, source=f"{UNSCALE}: divides in place")
def check_unscale_keeps_objects(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``unscale_`` divides the gradient where it is: a bucket, a hook or a view that holds it sees the result."""
    loop = Loop(backend)
    loop.backward(3.0)
    gradient = loop.leaf.grad
    assert gradient is not None
    view = gradient[:1]
    loop.unscale()
    yield case.exact("the very gradient", actual=loop.leaf.grad is gradient, expected=True)
    yield case.exact("a view of it", actual=view.tolist()[0], expected=3.0)
    yield case.exact("requires grad", actual=gradient.requires_grad, expected=False)


class _Handing(torch.optim.SGD):
    """An optimizer whose step returns one object."""

    given: ClassVar[list[str]] = ["what the optimizer returned"]

    def step(self, *_: Any, **__: Any) -> Any:
        super().step()
        return self.given


class _HandingFused(_Handing):
    """The same, of those that unscale by themselves: it makes no step."""

    _step_supports_amp_scaling = True

    def step(self, *_: Any, **__: Any) -> Any:
        return self.given


@story("step-hands-back", 23, source=f"{STEP}: returns the return value of optimizer.step")
def check_step_hands_back(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """``step`` gives the very object that the optimizer's step returned: enabled, disabled, and fused."""
    for optimizer, enabled in ((_Handing, True), (_Handing, False), (_HandingFused, True)):
        loop = Loop(backend, optimizer=optimizer, settings={"enabled": enabled})
        loop.backward()
        subject = f"the object of {optimizer.__name__}, enabled={enabled}"
        yield case.exact(subject, actual=loop.step() is _Handing.given, expected=True)


@story("gradient-with-a-graph", 15, source=f"{UNSCALE}: divides the gradients")
def check_gradient_with_a_graph(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Gradients that require gradients are divided in place like any other, and no graph takes note of it."""
    scaler, leaf = backend.scaler(init_scale=8.0), leaf_of(backend)
    optimizer = torch.optim.SGD([leaf], lr=1.0)
    loss = attempt("scaler.scale", scaler.scale, leaf.square().sum())
    (gradient,) = torch.autograd.grad(loss, [leaf], create_graph=True)
    leaf.grad, node = gradient, gradient.grad_fn
    yield case.exact("scaler.unscale_", actual=outcome(scaler.unscale_, optimizer), expected=NO_ERROR)
    yield case.exact("the gradient", actual=str(gradient.tolist()), expected="[2.0, 4.0]")
    yield case.exact("its graph is as it was", actual=gradient.grad_fn is node, expected=True)

    index = torch.tensor([[1, 1]], device=backend.device_type)
    rows = torch.ones(2, 1, dtype=torch.float16, device=backend.device_type)
    far = torch.zeros(3, 1, dtype=torch.float16, device=backend.device_type, requires_grad=True)
    far.grad = torch.sparse_coo_tensor(index, rows, far.shape, check_invariants=False, requires_grad=True)
    stepped = outcome(scaler.step, _HandingFused([far], lr=1.0))
    yield case.exact("a step on a float16 sparse gradient", actual=stepped, expected=NO_ERROR)
    yield case.exact("it requires grad once coalesced", actual=far.grad.requires_grad, expected=False)


@story("another-default-device", 5, 48, source=CLASS, variant="device", real_device="cpu")
@story("another-default-dtype", 5, 16, source=CLASS, variant="dtype")
def check_other_defaults(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """The scaler's own tensors are float32 and on the device of the outputs, whatever the defaults for new tensors."""
    before = torch.get_default_dtype()
    for fused in (False, True):
        loop = Loop(backend, fused=fused, settings={"growth_interval": 1})
        try:
            if case.variant == "dtype":
                torch.set_default_dtype(torch.float64)
            else:
                torch.set_default_device("meta")
            ran = outcome(loop.iterate)
        finally:
            torch.set_default_dtype(before)
            torch.set_default_device(None)
        yield case.exact(f"an iteration, fused={fused}", actual=ran, expected=NO_ERROR)
        yield case.exact(f"scale, fused={fused}", actual=_scale(loop), expected="16.0")
        yield case.exact(f"parameters, fused={fused}", actual=str(loop.leaf.tolist()), expected="[0.0, 1.0]")


def _scale(loop: Loop) -> str:
    """The scale, or the error of asking for it."""
    found: list[float] = []
    raised = outcome(lambda: found.append(loop.scaler.get_scale()))
    return str(found[0]) if found else raised
