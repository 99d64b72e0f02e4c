"""Planted faults of regions, of the weight cache, and of what stands around them; each has its row on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar
from unittest import mock

import torch

from amp_checks.families.ops.mutants import faults
from amp_checks.families.ops.mutants.every_edit import SOURCES
from amp_checks.families.ops.regions.state import DEFAULT_DTYPES
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

Fault = TypeVar("Fault")

MUTANTS: list[Mutant] = []


def _everywhere(_: Backend) -> bool:
    return True


def _real(backend: Backend) -> bool:
    return not backend.emulated


def _not_in_default_dtype(backend: Backend) -> bool:
    return backend.dtype != DEFAULT_DTYPES[backend.device_type]


def _fault(
    name: str,
    fault: str,
    case: str,
    check: str,
    *,
    plant: Callable[[Any], faults.Plant] = lambda faulty: faulty,
    applies: Callable[[Backend], bool] = _everywhere,
) -> Callable[[Fault], Fault]:
    """Make a mutant of what is decorated: of ``plant`` of it, a context manager as it is."""

    def made(faulty: Fault) -> Fault:
        MUTANTS.append(
            Mutant(
                id=name,
                family="ops",
                fault=fault,
                plant=plant(faulty),
                case=f"region.{case}",
                killed_by=(f"check_{check}",),
                applies=applies,
            )
        )
        return faulty

    return made


class _Region:
    """A region of the backend, to be made faulty by a subclass."""

    def __init__(self, region: Any, device_type: str) -> None:
        self.region, self.device_type = region, device_type

    def __enter__(self) -> Any:
        return self.region.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self.region.__exit__(*error)

    def __call__(self, function: Any) -> Any:
        return self.region(function)


def _regions(kind: type[_Region]) -> faults.Plant:
    def factory(backend: Backend) -> Any:
        return lambda device_type, **kwargs: kind(backend.autocast(device_type, **kwargs), device_type)

    return faults.with_autocast(factory)


@_fault("region-stays-on", "leaving a region turns nothing off", "nested", "region_state", plant=_regions)
class _StaysOn(_Region):
    def __exit__(self, *error: object) -> Any:
        result = self.region.__exit__(*error)
        torch.set_autocast_enabled(self.device_type, True)
        return result


@_fault(
    "region-keeps-dtype",
    "leaving a region keeps its dtype",
    *("nested", "region_state"),
    plant=_regions,
    applies=_not_in_default_dtype,
)
class _KeepsDtype(_Region):
    def __exit__(self, *error: object) -> Any:
        dtype = torch.get_autocast_dtype(self.device_type)
        result = self.region.__exit__(*error)
        torch.set_autocast_dtype(self.device_type, dtype)
        return result


@_fault(
    "region-takes-anything",
    "a region refuses no argument",
    *("bad_arguments", "region_arguments"),
    plant=faults.with_autocast,
)
def _takes_anything(_: Backend) -> Any:
    return lambda *_args, **_kwargs: nullcontext()


@_fault(
    "decorator-ignored",
    "a decorated function runs outside the region",
    *("decorated_function", "region_decorates"),
    plant=_regions,
)
class _DecoratesNothing(_Region):
    def __call__(self, function: Any) -> Any:
        return function


@_fault(
    "region-inherited-by-threads",
    "autocast is on in a new thread",
    *("new_thread", "region_is_of_its_thread"),
    applies=_real,
)
@contextmanager
def _inherited_by_threads(backend: Backend) -> Iterator[Backend]:
    run = threading.Thread.run

    def started(thread: threading.Thread) -> None:
        torch.set_autocast_enabled(backend.device_type, True)
        run(thread)

    with mock.patch.object(threading.Thread, "run", started):
        yield backend


@_fault("cache-never-cleared", "the weight cache outlives its region", "cache_hits", "weight_cache")
@contextmanager
def _cache_never_cleared(backend: Backend) -> Iterator[Backend]:
    clear = torch.clear_autocast_cache
    try:
        with mock.patch.object(torch, "clear_autocast_cache", return_value=None):
            yield backend
    finally:
        clear()


@_fault("cache-not-used", "a parameter is cast at each use", "cache_hits", "weight_cache", plant=faults.with_autocast)
def _without_cache(backend: Backend) -> Any:
    return lambda device_type, **kwargs: backend.autocast(device_type, **{**kwargs, "cache_enabled": False})


_fault(
    "gradient-off-linear",
    "gradients through linear inside a region are two units of the last place too large",
    *("gradient_dtypes", "region_gradients"),
)(faults.with_rule("linear", faults.lowering_then("linear", faults.gradient_off)))


@_fault(
    "custom-states-ignored", "custom_fwd and custom_bwd do nothing", *("custom_function_casting", "custom_functions")
)
@contextmanager
def _custom_states_ignored(backend: Backend) -> Iterator[Backend]:
    def plain(*_: Any, **__: Any) -> Callable[[Any], Any]:
        return lambda function: function

    with mock.patch.object(torch.amp, "custom_fwd", plain), mock.patch.object(torch.amp, "custom_bwd", plain):
        yield backend


_fault(
    "region-missed-by-vmap",
    "a function under vmap runs as if there were no region",
    *("vmapped", "function_transforms"),
    plant=faults.with_autocast,
)(_takes_anything)


@_fault(
    "compiled-without-autocast",
    "a compiled function runs without the region around it",
    *("compiled_parity", "compiled_as_eager"),
    applies=_real,
)
@contextmanager
def _compiled_without_autocast(backend: Backend) -> Iterator[Backend]:
    def compiled(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with backend.region(enabled=False):
                return function(*args)

        return run

    with mock.patch.object(torch, "compile", compiled):
        yield backend


_fault("float64-product-lowered", "mm lowers float64 inputs", "float64_meets", "mixed_dtypes")(
    faults.with_rule("mm", faults.casting_float64_too("mm"))
)


def _slip(name: str, fault: str, module: str, edit: str, case: str, check: str, **more: Any) -> None:
    """An edit of torch's own code, by its name."""
    _fault(name, fault, case, check, **more)(SOURCES[f"torch.{module}"].planting(edit))


_AUTOCAST, _CHECKPOINT = "amp.autocast_mode", "utils.checkpoint"

_slip(
    "slip-exit-keeps-cache-switch",
    "leaving a region does not put back whether casts are cached",
    _AUTOCAST,
    "call-removed@autocast.__exit__ [torch.set_autocast_cache_enabled(self.prev_cache_enabled)]",
    *("inner_region_left", "region_state"),
)
_slip(
    "slip-cache-enabled-ignored",
    "a region takes the switch of the cache from around it where it names one",
    _AUTOCAST,
    "condition-true@autocast.__init__ [torch.is_autocast_cache_enabled() if cache_enabled is None else cache_enabled]",
    *("inner_region_left", "region_state"),
)
_slip(
    "slip-device-not-asked-for-autocast",
    "a region takes a device that has no autocast",
    _AUTOCAST,
    "condition-false@autocast.__init__ [if not is_autocast_available(self.device):]",
    *("refused_devices", "region_arguments"),
)
_slip(
    "slip-decorator-drops-result",
    "a decorated function returns nothing",
    _AUTOCAST,
    "return-dropped@autocast_decorator.decorate_autocast [return func(*args, **kwargs)]",
    *("decorated_is_the_function", "region_decorates"),
)
_slip(
    "slip-custom-forward-casts-float64",
    "custom_fwd(cast_inputs=) casts float64, and nothing else",
    _AUTOCAST,
    "comparison-flipped@_cast [value.dtype is not torch.float64]",
    *("cast_tensors", "custom_functions"),
)
_slip(
    "slip-custom-forward-off-not-recorded",
    "custom_fwd(cast_inputs=) writes down that autocast was on",
    _AUTOCAST,
    "constant-changed@custom_fwd.decorate_fwd:4",
    *("forward_state", "custom_functions"),
)
_slip(
    "slip-recomputed-in-the-state-of-backward",
    "a checkpointed block is recomputed in the state of backward",
    _CHECKPOINT,
    "context-removed@_checkpoint_without_reentrant_generator.recompute_fn "
    "[torch.amp.autocast('cpu', **cpu_autocast_kwargs)]",
    *("recomputed_where_there_is_no_autocast", "region_gradients"),
    applies=lambda backend: backend.device_type == "cpu",
)
_slip(
    "slip-front-end-silent",
    "torch.cpu.amp.autocast is deprecated without a warning",
    "cpu.amp.autocast_mode",
    "decorator-removed@autocast:1",
    *("cpu_front_end", "region_state"),
    applies=lambda backend: backend.device_type == "cpu",
)
