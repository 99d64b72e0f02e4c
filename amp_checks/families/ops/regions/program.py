"""A program under a region, with what it must report on its own lines: ``@program(topic, expected)`` makes it a case.

Each program takes a backend and returns a value for each subject. ``low`` stands for the region's dtype, so that one
case serves every backend. Where a torch does otherwise, the case keeps what is right, and
``fixtures/known_defects/ops.json`` has the entry.
"""

from __future__ import annotations

import dataclasses
import enum
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from amp_checks.core import Check, Finding, Value, attempt, exact, first_line
from amp_checks.suite.row import Row
from amp_checks.torch_api import machine, state
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import randn

Seen = dict[str, Value]
Program = Callable[[Backend], Seen]


class Topic(enum.Enum):
    """What a program is about: the name of its check, without ``check_``, and what that check holds."""

    STATE = "region_state", "A region holds inside and nowhere else, however it is entered and left."
    ARGUMENTS = "region_arguments", "A region refuses what it cannot do, with a message."
    DECORATORS = (
        "region_decorates",
        "A decorated function runs in the region; generators and coroutines too, and they do not leak it.",
    )
    THREADS = "region_is_of_its_thread", "A region, and its weight cache, belong to the thread that entered it."
    CACHE = "weight_cache", "Parameters are cast once per outermost region, and the cache changes no result."
    GRADIENTS = (
        "region_gradients",
        "Gradients through a region are those through the same explicit casts, checkpointed or taken twice.",
    )
    FUNCTIONS = "custom_functions", "``custom_fwd`` and ``custom_bwd`` give a function one state, forward and backward."
    TRANSFORMS = "function_transforms", "``vmap``, ``func.grad`` and ``jvp`` run under the rules."
    COMPILED = "compiled_as_eager", "Captured programs give eager's dtypes and values."
    MIXED = "mixed_dtypes", "Low results meet float32 and float64 tensors as the documentation says."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RegionCase(Row):
    """A program, and what it must report.

    Attributes:
        run: the program.
        topic: which check runs it.
        expected: subject -> value.
        expected_on: the same where it differs by device type; its subjects join those of ``expected``.
        source: where the expectation comes from.
        real_only: why it says nothing under emulation; empty where it does.
        devices: device types on which it means something; all where empty.
        machine: a condition of `amp_checks.torch_api.machine` without which it cannot run.
    """

    family: ClassVar[str] = "ops"

    run: Program
    topic: Topic
    expected: Mapping[str, Value]
    expected_on: Mapping[str, Mapping[str, Value]] = dataclasses.field(default_factory=dict)
    source: str = "torch.autocast documentation"
    real_only: str = ""
    devices: tuple[str, ...] = ()
    machine: str = ""

    @property
    def id(self) -> str:
        return f"region.{self.run.__name__}"

    def runs_on(self, backend: Backend) -> bool:
        if self.devices and backend.device_type not in self.devices:
            return False
        return not (self.real_only and backend.emulated) and machine.holds(self.machine)


def program(
    topic: Topic, expected: Mapping[str, Value] | None = None, **fields: Any
) -> Callable[[Program], RegionCase]:
    """Make a case of a program; the other fields as of `RegionCase`."""
    return lambda run: RegionCase(run=run, topic=topic, expected=expected or {}, **fields)


def checks_for(case: RegionCase) -> Iterator[Check]:
    yield _CHECKS[case.topic]


def _check_of(topic: Topic) -> Check:
    """The check that runs the programs of a topic and compares what they report."""

    def check(case: RegionCase, backend: Backend) -> Iterator[Finding]:
        before = state.capture()
        try:
            seen = attempt(case.run.__name__, case.run, backend)
        finally:
            # What a program leaves behind is among its findings; the next check must not see it.
            state.restore(before)
        for subject, expected in {**case.expected, **case.expected_on.get(backend.device_type, {})}.items():
            yield exact(subject, actual=seen.get(subject), expected=expected, why=case.source)

    name, check.__doc__ = topic.value
    check.__name__ = check.__qualname__ = f"check_{name}"
    return check


_CHECKS = {topic: _check_of(topic) for topic in Topic}


# Words that the programs share.


def tensor(backend: Backend, *shape: int, seed: str = "regions") -> torch.Tensor:
    """A float32 tensor on the backend's device."""
    return randn(*shape, seed=seed, device=backend.device_type)


def weight(backend: Backend, *shape: int, seed: str = "weight") -> torch.nn.Parameter:
    """A float32 parameter on the backend's device."""
    return torch.nn.Parameter(tensor(backend, *shape, seed=seed))


def low(backend: Backend, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors in the region's dtype."""
    return tuple(t.to(backend.low_dtype) for t in tensors)


def named(backend: Backend, dtype: torch.dtype) -> str:
    """``low`` for the region's dtype, else the dtype's name."""
    return "low" if dtype is backend.low_dtype else dtype_name(dtype)


def product(backend: Backend) -> str:
    """The dtype that a product of float32 matrices has here."""
    a = tensor(backend, 4, 4)
    return named(backend, torch.mm(a, a).dtype)


def outcome(function: Callable[[], Any]) -> str:
    """``TypeError: first line`` of what was raised, or ``no exception``."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - every kind is what is looked at
        return f"{type(error).__name__}: {first_line(error)}"
    return "no exception"


def value(function: Callable[[], Value]) -> Value:
    """What the function gives, or ``TypeError: first line`` of what it raised: as much a measurement as a value."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - every kind is what is looked at
        return f"{type(error).__name__}: {first_line(error)}"


def held(backend: Backend, device_type: str = "") -> str:
    """The switches of autocast: ``on in low, cache on, depth 1``."""
    device = device_type or backend.device_type
    enabled = "on" if torch.is_autocast_enabled(device) else "off"
    cache = "on" if torch.is_autocast_cache_enabled() else "off"
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    return f"{enabled} in {named(backend, torch.get_autocast_dtype(device))}, cache {cache}, depth {depth}"


def other_low(backend: Backend) -> torch.dtype:
    """The 16-bit dtype that is not the backend's."""
    return torch.bfloat16 if backend.low_dtype is torch.float16 else torch.float16


def texts(caught: list[warnings.WarningMessage], *, caller: Callable[..., Any]) -> str:
    """``UserWarning: text`` of each warning, and whom it blames where that is no line of the function ``caller``."""
    code = caller.__code__
    lines = {line for _, _, line in code.co_lines()}
    return "; ".join(
        f"{each.category.__name__}: {each.message}"
        + (
            ""
            if each.filename == code.co_filename and each.lineno in lines
            else f" [blames {Path(each.filename).name}]"
        )
        for each in caught
    )
