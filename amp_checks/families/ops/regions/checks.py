"""Checks of regions and of their weight cache: each runs the programs of one topic and compares what they report."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.core import Backend, Check, Finding, attempt, exact
from amp_checks.families.ops.regions import programs, training_programs
from amp_checks.families.ops.regions.cases import RegionCase, Topic
from amp_checks.torch_api import state

PROGRAMS = {**programs.PROGRAMS, **training_programs.PROGRAMS}


def checks_for(case: RegionCase) -> Iterator[Check]:
    yield _CHECKS[case.topic]


def _observed(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    before = state.capture()
    try:
        seen = attempt(case.program, PROGRAMS[case.program], backend)
    finally:
        # What a program leaves behind is among its findings; the next check must not see it.
        state.restore(before)
    for subject, expected in case.right(backend.device_type).items():
        yield exact(subject, actual=seen.get(subject), expected=expected, why=case.source)


def check_region_state(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """A region holds inside and nowhere else, however it is entered and left."""
    yield from _observed(case, backend)


def check_region_arguments(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """A region refuses what it cannot do, with a message."""
    yield from _observed(case, backend)


def check_region_decorates(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """A decorated function runs in the region; generators and coroutines too, and they do not leak it."""
    yield from _observed(case, backend)


def check_region_is_of_its_thread(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """A region, and its weight cache, belong to the thread that entered it."""
    yield from _observed(case, backend)


def check_weight_cache(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """Parameters are cast once per outermost region, and the cache changes no result."""
    yield from _observed(case, backend)


def check_region_gradients(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """Gradients through a region are those through the same casts by hand, checkpointed or taken twice."""
    yield from _observed(case, backend)


def check_custom_functions(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """``custom_fwd`` and ``custom_bwd`` give a function one state, forward and backward."""
    yield from _observed(case, backend)


def check_function_transforms(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """``vmap``, ``func.grad`` and ``jvp`` run under the rules."""
    yield from _observed(case, backend)


def check_compiled_as_eager(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """Captured programs give eager's dtypes and values."""
    yield from _observed(case, backend)


def check_mixed_dtypes(case: RegionCase, backend: Backend) -> Iterator[Finding]:
    """Low results meet float32 and float64 tensors as the documentation says."""
    yield from _observed(case, backend)


_CHECKS: dict[Topic, Check] = {
    Topic.STATE: check_region_state,
    Topic.ARGUMENTS: check_region_arguments,
    Topic.DECORATORS: check_region_decorates,
    Topic.THREADS: check_region_is_of_its_thread,
    Topic.CACHE: check_weight_cache,
    Topic.GRADIENTS: check_region_gradients,
    Topic.FUNCTIONS: check_custom_functions,
    Topic.TRANSFORMS: check_function_transforms,
    Topic.COMPILED: check_compiled_as_eager,
    Topic.MIXED: check_mixed_dtypes,
}
