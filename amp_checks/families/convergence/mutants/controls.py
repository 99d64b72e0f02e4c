"""Negative controls: which mistake, planted in which task, which check must notice.

Each is the well-known mistake that its text says: a faulty scaler, a faulty region, or a patch of the training itself.
Scalers and regions come in through a backend's factories, so they can be planted in any loop that takes its region and
scaler from a backend. The planted faults of every run are cells of this matrix;
``benchmarks/convergence_negative_controls.py`` runs the whole of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from amp_checks.families.convergence import checks
from amp_checks.families.convergence.cases import ConvergenceCase
from amp_checks.reference import recipes
from amp_checks.torch_api.backend import Backend

Plant = Callable[[Backend], AbstractContextManager[Backend]]
Applies = Callable[[ConvergenceCase, Backend], bool]
Region = AbstractContextManager[Any]
Fault = TypeVar("Fault", bound=Callable[..., Any])


def _scaled(case: ConvergenceCase, backend: Backend) -> bool:
    return case.task.amp(backend).scaled


def _everywhere(_case: ConvergenceCase, _backend: Backend) -> bool:
    return True


def _only(*tasks: str) -> Applies:
    return lambda case, _: case.id in tasks


def _only_scaled(*tasks: str) -> Applies:
    return lambda case, backend: case.id in tasks and _scaled(case, backend)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A mistake that must not pass.

    Attributes:
        id: what tables call it.
        fault: what is wrong, in one clause.
        plant: how it is planted.
        must: the check that must notice wherever it applies.
        why: why that check, where the loss alone may not tell.
        applies: in which tasks, on which backends, it is a mistake at all.
    """

    id: str
    fault: str
    plant: Plant
    must: str
    why: str
    applies: Applies = _everywhere


CONTROLS: list[Control] = []


def with_scaler(grad_scaler: Any, bfloat16: Any = None) -> Plant:
    """Plant a faulty scaler; another one on bfloat16 backends where given."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        faulty = bfloat16 if bfloat16 is not None and backend.dtype == "bfloat16" else grad_scaler
        yield dataclasses.replace(backend, grad_scaler=faulty)

    return plant


def with_region(wrap: Callable[[Backend, Region], Region]) -> Plant:
    """Plant regions that ``wrap(backend, region)`` makes of the backend's own."""

    # One faulty backend for each healthy one: the checks of a planting share the runs that they look at.
    @functools.cache
    def broken(backend: Backend) -> Backend:
        def faulty(*args: Any, **kwargs: Any) -> Region:
            return wrap(backend, backend.autocast(*args, **kwargs))

        return dataclasses.replace(backend, autocast=faulty)

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        try:
            yield broken(backend)
        finally:
            torch.clear_autocast_cache()

    return plant


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


def _control(planting: Callable[[Any], Plant]) -> Callable[..., Callable[[Fault], Fault]]:
    """A decorator that makes a control of the fault that it decorates, planted in that way."""

    def of(name: str, fault: str, *, must: str, why: str, applies: Applies = _everywhere) -> Callable[[Fault], Fault]:
        def made(faulty: Fault) -> Fault:
            CONTROLS.append(Control(id=name, fault=fault, plant=planting(faulty), must=must, why=why, applies=applies))
            return faulty

        return made

    return of


scaler, region, patch = _control(with_scaler), _control(with_region), _control(in_every_precision)


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


@scaler(
    "gradients-times-0.9",
    "every gradient is 0.9 of what it should be",
    must="check_first_gradients",
    why="Adam does not mind the size of gradients, and clipping hides it",
)
class GradientsTimes09(torch.amp.GradScaler):
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(0.9)
        return super().step(optimizer, *args, **kwargs)


@scaler(
    "unscale-forgotten",
    "the optimizer sees gradients that still carry the loss scale",
    must="check_first_gradients",
    why="Adam does not mind the size of gradients, and clipping hides it",
    applies=_scaled,
)
class UnscaleForgotten(torch.amp.GradScaler):
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(self.get_scale())


@scaler(
    "layer-left-scaled",
    "the gradient of one parameter is not unscaled",
    must="check_first_gradients",
    why="Adam does not mind the size of gradients",
    applies=_scaled,
)
class LayerLeftScaled(torch.amp.GradScaler):
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        first = next(parameters_of(optimizer))
        if first.grad is not None:
            first.grad.mul_(self.get_scale())


@scaler(
    "micro-batch-left-unscaled",
    "one micro-batch of four is not scaled, and so is lost",
    must="check_first_gradients",
    why="three micro-batches of four still learn",
    applies=_only_scaled("digits-accumulated-clipped"),
)
class MicroBatchLeftUnscaled(torch.amp.GradScaler):
    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self.calls = 0

    def scale(self, outputs: Any) -> Any:
        self.calls += 1
        scaled = super().scale(outputs)
        return scaled if self.calls % 4 else scaled / self.get_scale()


@scaler(
    "scaler-absent",
    "float16 trained without a scaler",
    must="check_steps_run",
    why="where nothing underflows, nothing is lost yet",
    applies=_scaled,
)
@scaler(
    "scaler-absent-where-gradients-underflow",
    "float16 trained without a scaler",
    must="check_trains_like_fp32",
    why="the loss does not move",
    applies=_only_scaled("gradients-underflow"),
)
def absent_scaler(device: str, /, **settings: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device, **{**settings, "enabled": False})


@scaler(
    "steps-on-overflow",
    "the optimizer steps on infinite gradients",
    must="check_trains_like_fp32",
    why="weights become NaN",
    applies=_only_scaled("gradients-overflow"),
)
class StepsOnOverflow(torch.amp.GradScaler):
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        taken: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: taken.append(True))
        result = super().step(optimizer, *args, **kwargs)
        hook.remove()
        return result if taken else optimizer.step(*args, **kwargs)


class WeightsKeptLow(torch.amp.GradScaler):
    """Each update is rounded to the low dtype, and small ones are lost."""

    low_dtype: torch.dtype

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        result = super().step(optimizer, *args, **kwargs)
        with torch.no_grad():
            for parameter in parameters_of(optimizer):
                parameter.copy_(parameter.to(self.low_dtype))
        return result


class WeightsKeptBFloat16(WeightsKeptLow):
    low_dtype = torch.bfloat16


@_control(functools.partial(with_scaler, bfloat16=WeightsKeptBFloat16))(
    "weights-kept-low",
    "weights are kept in the low dtype",
    must="check_stays_fp32",
    why="updates that are large enough survive the rounding",
)
class WeightsKeptFloat16(WeightsKeptLow):
    low_dtype = torch.float16


@scaler(
    "scale-starts-low",
    "the loss scale starts at 512, and some gradients underflow",
    must="check_gradients_survive",
    why="the gradients that are lost are the smallest",
    applies=_only_scaled("gradients-underflow"),
)
def small_scale(device: str, /, **settings: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device, **{**settings, "init_scale": 512.0})


@scaler(
    "scale-backs-off-always",
    "the loss scale backs off after clean steps too",
    must="check_steps_run",
    why="where nothing underflows, nothing is lost yet",
    applies=_scaled,
)
class BacksOffAlways(torch.amp.GradScaler):
    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale)
        if self.is_enabled():
            super().update(max(1.0, self.get_scale() * self.get_backoff_factor()))


@scaler(
    "every-tenth-step-skipped",
    "every tenth step is skipped for no reason",
    must="check_steps_run",
    why="nine steps of ten still learn",
)
class SkipsEveryTenth(torch.amp.GradScaler):
    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self.calls = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.calls += 1
        if self.calls % 10:
            return super().step(optimizer, *args, **kwargs)
        self.unscale_(optimizer)
        return None


@scaler(
    "every-tenth-step-twice",
    "every tenth step is taken twice",
    must="check_trains_like_fp32",
    why="nothing but the result tells",
    applies=_only("reference"),
)
class StepsTwice(torch.amp.GradScaler):
    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self.calls = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.calls += 1
        result = super().step(optimizer, *args, **kwargs)
        if self.calls % 10 == 0:
            optimizer.step()
        return result


@patch(
    "nothing-learned",
    "SGD moves no weight, in FP32 and AMP alike",
    must="check_learns",
    why="AMP trains as well as FP32: not at all",
    applies=_only("digits-mlp"),
)
def nothing_learned() -> AbstractContextManager[Any]:
    return mock.patch.object(torch.optim.SGD, "step", autospec=True, return_value=None)


@patch(
    "another-text-taught",
    "the model is taught a text with one character changed, in FP32 and AMP alike",
    must="check_says_text",
    why="it learns that text as well as any other",
    applies=_only("reference"),
)
def another_text() -> AbstractContextManager[Any]:
    return mock.patch.object(recipes, "TEXT", recipes.TEXT[:-1] + "\u534a")


@region(
    "region-does-nothing",
    "the region casts nothing: training goes well, and saves nothing",
    must="check_keeps_less_for_backward",
    why="FP32 trains like FP32",
    applies=lambda case, _: case.kept is not None,
)
def does_nothing(backend: Backend, _: Region) -> Region:
    return backend.autocast(backend.device_type, dtype=backend.low_dtype, enabled=False)


# Recomputing a checkpointed layer in backward ends a region of its own, which clears the cache.
@region(
    "stale-weight-cache",
    "one region around the whole loop: the weight cache freezes the weights it sees",
    must="check_trains_like_fp32",
    why="the forward pass never sees an update",
    applies=lambda case, _: case.id != "digits-checkpointed",
)
@contextmanager
def keeps_cache(_: Backend, region: Region) -> Iterator[None]:
    """Casts of weights made in the first step serve every later one, as in one region around a whole loop."""
    torch.autocast_increment_nesting()
    try:
        with region:
            yield
    finally:
        torch.autocast_decrement_nesting()


LOSSES = frozenset({"mse_loss", "cross_entropy", "binary_cross_entropy_with_logits"})


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


@region(
    "loss-in-low-precision",
    "the loss is computed in the low dtype",
    must="check_stays_fp32",
    why="a loss that is rounded once has nearly the same gradient",
)
@contextmanager
def losses_low(backend: Backend, region: Region) -> Iterator[None]:
    with region, LowPrecisionCalls(LOSSES, backend.device_type, backend.low_dtype):
        yield


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


@region(
    "statistics-kept-low",
    "batch normalisation keeps its running statistics in the low dtype",
    must="check_stays_fp32",
    why="statistics of a few steps lose little by it",
    applies=_only("digits-cnn"),
)
@contextmanager
def low_statistics(backend: Backend, region: Region) -> Iterator[None]:
    with region, LowStatistics(backend.low_dtype):
        yield
