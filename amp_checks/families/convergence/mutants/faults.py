"""Faulty scalers and regions: they drop in for `torch.amp.GradScaler` and `torch.autocast`.

Each is the well-known mistake that its name says. They come in through a backend's factories, so they can be
planted in any loop that takes its region and scaler from a backend.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from amp_checks.core import Backend
from amp_checks.families.convergence import checks
from amp_checks.reference import recipes

Plant = Callable[[Backend], AbstractContextManager[Backend]]


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


class GradientsTimes09(torch.amp.GradScaler):
    """Every gradient comes out as 0.9 of what it should be."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(0.9)
        return super().step(optimizer, *args, **kwargs)


class UnscaleForgotten(torch.amp.GradScaler):
    """The optimizer is given gradients that still carry the loss scale."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(self.get_scale())


class LayerLeftScaled(torch.amp.GradScaler):
    """The gradient of the first parameter is not unscaled."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        first = next(parameters_of(optimizer))
        if first.grad is not None:
            first.grad.mul_(self.get_scale())


class MicroBatchLeftUnscaled(torch.amp.GradScaler):
    """Of the losses that are accumulated, every fourth is not scaled, and so is lost."""

    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self.calls = 0

    def scale(self, outputs: Any) -> Any:
        self.calls += 1
        scaled = super().scale(outputs)
        return scaled if self.calls % 4 else scaled / self.get_scale()


class StepsOnOverflow(torch.amp.GradScaler):
    """The scale backs off on inf and NaN gradients, and the optimizer steps with them all the same."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        taken: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: taken.append(True))
        result = super().step(optimizer, *args, **kwargs)
        hook.remove()
        return result if taken else optimizer.step(*args, **kwargs)


class SkipsEveryTenth(torch.amp.GradScaler):
    """Every tenth step is skipped for no reason."""

    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self.calls = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.calls += 1
        if self.calls % 10:
            return super().step(optimizer, *args, **kwargs)
        self.unscale_(optimizer)
        return None


class StepsTwice(torch.amp.GradScaler):
    """Every tenth step is taken twice."""

    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self.calls = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.calls += 1
        result = super().step(optimizer, *args, **kwargs)
        if self.calls % 10 == 0:
            optimizer.step()
        return result


class BacksOffAlways(torch.amp.GradScaler):
    """The scale backs off after every step, clean or not, down to 1."""

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale)
        if self.is_enabled():
            super().update(max(1.0, self.get_scale() * self.get_backoff_factor()))


class WeightsKeptLow(torch.amp.GradScaler):
    """Weights live in the low dtype: each update is rounded to it, and small ones are lost."""

    low_dtype: torch.dtype

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        result = super().step(optimizer, *args, **kwargs)
        with torch.no_grad():
            for parameter in parameters_of(optimizer):
                parameter.copy_(parameter.to(self.low_dtype))
        return result


class WeightsKeptBFloat16(WeightsKeptLow):
    """The low dtype is bfloat16."""

    low_dtype = torch.bfloat16


class WeightsKeptFloat16(WeightsKeptLow):
    """The low dtype is float16."""

    low_dtype = torch.float16


def small_scale(device: str, /, **settings: Any) -> torch.amp.GradScaler:
    """A scaler whose loss scale starts too low, at 512."""
    return torch.amp.GradScaler(device, **{**settings, "init_scale": 512.0})


def absent_scaler(device: str, /, **settings: Any) -> torch.amp.GradScaler:
    """A loop without a scaler."""
    return torch.amp.GradScaler(device, **{**settings, "enabled": False})


class KeepsCache:
    """A region that leaves the weight cache alive when it ends, as one region around a whole loop does.

    Casts of weights made in the first step then serve every later one: the forward pass never sees an update.
    """

    def __init__(self, region: AbstractContextManager[Any]) -> None:
        self.region = region

    def __enter__(self) -> None:
        torch.autocast_increment_nesting()
        self.region.__enter__()

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036 - handed on as it came
        self.region.__exit__(*error)
        torch.autocast_decrement_nesting()


class LowPrecisionCalls(TorchFunctionMode):
    """The named functions get floating inputs in the low dtype, with autocast off, and give float32."""

    def __init__(self, names: frozenset[str], device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.names = names
        self.device_type = device_type
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in self.names:
            return func(*args, **(kwargs or {}))
        with torch.autocast(self.device_type, dtype=self.dtype, enabled=False):
            low = [x.to(self.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
            return func(*low, **(kwargs or {})).float()


class LowStatistics(TorchFunctionMode):
    """Batch normalisation keeps its running statistics in the low dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "batch_norm":
            for running in args[1:3]:
                # Past the version counter: backward does not need these values, but it counts changes.
                running.data.copy_(running.to(self.dtype))
        return out


def with_scaler(grad_scaler: Any, bfloat16: Any = None) -> Plant:
    """Plant a faulty scaler; another one on bfloat16 backends where given."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        faulty = bfloat16 if bfloat16 is not None and backend.dtype == "bfloat16" else grad_scaler
        yield dataclasses.replace(backend, grad_scaler=faulty)

    return plant


def with_region(wrap: Callable[[Backend, AbstractContextManager[Any]], AbstractContextManager[Any]]) -> Plant:
    """Plant regions that ``wrap(backend, region)`` makes of the backend's own."""

    # One faulty backend for each healthy one: the checks of a planting share the runs that they look at.
    @functools.cache
    def broken(backend: Backend) -> Backend:
        def faulty(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
            return wrap(backend, backend.autocast(*args, **kwargs))

        return dataclasses.replace(backend, autocast=faulty)

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        try:
            yield broken(backend)
        finally:
            torch.clear_autocast_cache()

    return plant


def keeps_cache(_: Backend, region: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    return KeepsCache(region)


def does_nothing(backend: Backend, _: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """A region that casts nothing."""
    return backend.autocast(backend.device_type, dtype=backend.low_dtype, enabled=False)


@contextmanager
def low_statistics(backend: Backend, region: AbstractContextManager[Any]) -> Iterator[None]:
    """Regions in which batch normalisation keeps its statistics in the low dtype."""
    with region, LowStatistics(backend.low_dtype):
        yield


def in_every_precision(patch: Callable[[], AbstractContextManager[Any]]) -> Plant:
    """Plant what a patch changes for FP32 and AMP alike, past the backend."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        checks.forget_runs()
        try:
            with patch():
                yield backend
        finally:
            checks.forget_runs()

    return plant


def nothing_learned() -> AbstractContextManager[Any]:
    """SGD moves no weight."""
    return mock.patch.object(torch.optim.SGD, "step", autospec=True, return_value=None)


def another_text() -> AbstractContextManager[Any]:
    """The text recipes teach a text with one character changed."""
    return mock.patch.object(recipes, "TEXT", recipes.TEXT[:-1] + "\u534a")


def low_precision_calls(*names: str) -> Callable[[Backend, AbstractContextManager[Any]], AbstractContextManager[Any]]:
    """Regions in which the named functions run in the low dtype."""

    @contextmanager
    def wrap(backend: Backend, region: AbstractContextManager[Any]) -> Iterator[None]:
        with region, LowPrecisionCalls(frozenset(names), backend.device_type, backend.low_dtype):
            yield

    return wrap
