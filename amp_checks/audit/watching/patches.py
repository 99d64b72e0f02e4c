"""What is replaced in torch while a run is watched, so that an unmodified program tells what it does.

Methods are replaced on their classes: whoever imported a class by name is seen too. `neutral` goes the same way to
run a program with every region and scaler disabled, whatever it wrote.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from amp_checks.audit.watching.trace import Kind
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches

if TYPE_CHECKING:
    from amp_checks.audit.watching.watch import Watch

_TORCH = tuple(torch.__path__)
Method = Callable[..., Any]


def _called_by_torch() -> bool:
    """Whether the caller of the replaced method is torch itself."""
    return sys._getframe(2).f_code.co_filename.startswith(_TORCH)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Tell a watch what scaler, regions, engine, optimizers and schedulers do."""
    with Patches() as patches:
        patches.callback(register_optimizer_step_pre_hook(watch.before_step).remove)
        patches.callback(register_optimizer_step_post_hook(lambda optimizer, *_: watch.after_step(optimizer)).remove)
        _watch_scaler(patches, watch)
        _watch_regions(patches, watch)
        _watch_engine(patches, watch)
        _watch_others(patches, watch)
        yield


def _watch_scaler(patches: Patches, watch: Watch) -> None:
    for name, make in (
        ("__init__", _scaler_made),
        ("scale", _scaled),
        ("unscale_", _unscaled),
        ("step", _scaler_steps),
        ("update", _updated),
    ):
        patches.replace(torch.amp.GradScaler, name, functools.partial(make, watch))


def _scaler_made(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        asked = kwargs.get("enabled", args[5] if len(args) > 5 else True)
        device = kwargs.get("device", args[0] if args else "cuda")
        watch.made_scaler(self, asked=bool(asked), device=str(device))

    return replacement


def _scaled(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        if self.is_enabled():
            watch.scaled(outputs, result, self.get_scale())
        return result

    return replacement


def _unscaled(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, optimizer: Any) -> Any:
        if not self.is_enabled():
            return original(self, optimizer)
        by_user = not _called_by_torch()
        with watch.quiet_ops():
            result = original(self, optimizer)
        if by_user:
            watch.unscaled(self, optimizer)
        return result

    return replacement


def _scaler_steps(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with watch.scaler_steps(self, optimizer):
            return original(self, optimizer, *args, **kwargs)

    return replacement


def _updated(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watch.quiet_ops():
            result = original(self, *args, **kwargs)
            follow = watch.scale_to_follow() if self.is_enabled() else None
            if follow is not None:
                original(self, new_scale=follow)
        if self.is_enabled():
            watch.updated(self)
        return result

    return replacement


def _watch_regions(patches: Patches, watch: Watch) -> None:
    for name, make in (("__init__", _region_made), ("__enter__", _entered), ("__exit__", _left)):
        patches.replace(torch.autocast, name, functools.partial(make, watch))


def _region_made(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        asked = kwargs.get("enabled", args[2] if len(args) > 2 else True)
        device, _, enabled, _ = private.region_settings(self)
        if asked and not enabled:
            watch.tell(Kind.DISABLED_REGION, device=device)

    return replacement


def _entered(watch: Watch, original: Method) -> Method:
    def replacement(self: Any) -> Any:
        result = original(self)
        watch.entered(*private.region_settings(self))
        return result

    return replacement


def _left(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, *args: Any) -> Any:
        watch.left()
        return original(self, *args)

    return replacement


def _watch_engine(patches: Patches, watch: Watch) -> None:
    def run(original: Method) -> Method:
        def replacement(roots: Any, *args: Any, **kwargs: Any) -> Any:
            accumulates = bool(kwargs.get("accumulate_grad"))
            inputs = tuple(args[3]) if len(args) > 3 and not accumulates else ()
            create_graph = bool(args[2])
            with watch.backward(roots, accumulates=accumulates, create_graph=create_graph, inputs=inputs) as results:
                outermost = watch.backward_depth == 1  # what runs inside is given what was mended already
                gradients = args[0]
                if accumulates and outermost:
                    with watch.quietly():
                        gradients = watch.rehearsal.seeds(watch.step, roots, watch.mend.boosted(gradients))
                found = original(roots, gradients, *args[1:], **kwargs)
                if not accumulates and outermost:
                    found = watch.mend.without_scale(roots, found)
                results.extend(found or ())
            return found

        return replacement

    owner, name = private.backward_engine()
    patches.replace(owner, name, run)


def _watch_others(patches: Patches, watch: Watch) -> None:
    optimizer = torch.optim.Optimizer
    patches.replace(optimizer, "__init__", functools.partial(_optimizer_made, watch))
    patches.replace(optimizer, "zero_grad", functools.partial(_zeroed, watch, _parameters_of_optimizer))
    patches.replace(torch.nn.Module, "zero_grad", functools.partial(_zeroed, watch, _parameters_of_module))
    for cls in _schedulers():
        patches.replace(cls, "step", functools.partial(_scheduled, watch))
    patches.replace(torch.autograd.Function, "apply", functools.partial(_applied, watch))
    patches.replace(torch, "save", functools.partial(_saved, watch))


def _optimizer_made(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch.number(self)

    return replacement


def _parameters_of_optimizer(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parameters_of_module(module: Any) -> list[torch.Tensor]:
    return list(module.parameters())


def _zeroed(watch: Watch, parameters: Callable[[Any], list[torch.Tensor]], original: Method) -> Method:
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watch.quiet_ops():
            result = original(self, *args, **kwargs)
        watch.zeroed(parameters(self))
        return result

    return replacement


def _scheduled(watch: Watch, original: Method) -> Method:
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        by_user = not _called_by_torch()
        result = original(self, *args, **kwargs)
        if by_user:
            watch.scheduled(self)
        return result

    return replacement


def _applied(watch: Watch, original: Method) -> Method:
    def replacement(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return original(cls, *args, **kwargs)
        watch.applied(cls, decorated=_is_decorated(cls))
        watch.ops.functions.append(cls.__name__)
        try:
            return original(cls, *args, **kwargs)
        finally:
            watch.ops.functions.pop()

    return replacement


def _saved(watch: Watch, original: Method) -> Method:
    def replacement(what: Any, *args: Any, **kwargs: Any) -> Any:
        watch.saved(optimizer=holds(what, _OPTIMIZER_KEYS), scaler=holds(what, _SCALER_KEYS))
        return original(what, *args, **kwargs)

    return replacement


_OPTIMIZER_KEYS = {"state", "param_groups"}
_SCALER_KEYS = {"scale", "growth_factor", "_growth_tracker"}


def holds(what: Any, keys: set[str]) -> bool:
    """Whether nested containers hold a mapping with these keys."""
    if isinstance(what, dict):
        return keys <= set(map(str, what)) or any(holds(value, keys) for value in what.values())
    return isinstance(what, list | tuple) and any(holds(value, keys) for value in what)


def _is_decorated(function: Any) -> bool:
    """Whether ``custom_fwd`` wraps its forward, or ``custom_bwd`` its backward."""
    return any(
        getattr(getattr(method, "__code__", None), "co_filename", "").endswith("autocast_mode.py")
        for method in (function.forward, function.backward)
    )


def _schedulers() -> list[type]:
    """The scheduler classes that have a ``step`` of their own."""
    found = [lr_scheduler.LRScheduler]
    for cls in found:
        found += [sub for sub in cls.__subclasses__() if sub not in found]
    return [cls for cls in found if "step" in vars(cls)]


@contextmanager
def neutral(*, scalers: bool = True) -> Iterator[None]:
    """Run a program with every region and, unless asked otherwise, every scaler disabled."""

    def enter(original: Method) -> Method:
        def replacement(self: Any) -> Any:
            was = private.set_region_enabled(self, False)
            try:
                return original(self)
            finally:
                private.set_region_enabled(self, was)

        return replacement

    def init(original: Method) -> Method:
        def replacement(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args[:5], **{**kwargs, "enabled": False})

        return replacement

    with Patches() as patches:
        patches.replace(torch.autocast, "__enter__", enter)
        if scalers:
            patches.replace(torch.amp.GradScaler, "__init__", init)
        yield
