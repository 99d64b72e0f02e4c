"""The shape of a row of the ops table, and short words to write one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from amp_checks.core import DEVICE_TYPES, CastPolicy
from amp_checks.families.ops.inputs import T, Values
from amp_checks.records import cast_policy
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend

RUN = "run"
"""An output in the dtype in which the op ran."""
COMPLEX = "complex"
"""An output in the complex dtype of that precision."""
SCRATCH = "scratch"
"""An output of memory that means nothing to the caller."""

PRODUCTS_INSIDE = "a composite: without a rule of its own, the listed ops inside it are cast"
MEMORY_INSIDE = "its code reads the memory of a tensor, which an emulated one does not have"
NAMES = "a wrapper has no names for its dimensions"
SUBCLASS_INSIDE = "its code takes another path for tensor subclasses, which emulated tensors are"

NORMAL = Values.NORMAL
POSITIVE = Values.POSITIVE
UNIT = Values.UNIT
SIGNED = Values.SIGNED_UNIT
WEIGHT = Values.WEIGHT
NEAR_ONE = Values.NEAR_ONE
SPREAD = Values.SPREAD
SEPARATED = Values.SEPARATED
REFLECTOR = Values.REFLECTOR
EIGHTHS = Values.EIGHTHS
GRID = Values.GRID
SIGN = Values.SIGN
SPD = Values.SPD
REGULAR = Values.REGULAR
LOWER = Values.LOWER
LOG_SOFTMAX = Values.LOG_SOFTMAX


def x(*shape: int, draw: Values = NORMAL, grad: bool = True, names: tuple[str, ...] = ()) -> T:
    """A floating tensor whose dtype the plan gives."""
    return T(shape, draw, grad=grad, names=names)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpCase(Row):
    """An overload, its inputs, and what it gives.

    Attributes:
        id: the overload as the dispatcher names it, without ``aten::``: ``mm``, ``softmax.int``.
        args, kwargs: its inputs, with `T` where a tensor stands.
        outputs: dtype of each tensor that it returns: `RUN`, `COMPLEX`, `SCRATCH`, or a dtype's name.
        enters: the overload that the rule calls, where it is another one (``fp32_append_dtype``).
        call: the public function, by its path, to call instead of the overload: named tensors cannot be
            handed to an overload, nor to a kernel in Python, so an op with names is not looked at at its
            entry.
        no_gradient: why it has no gradient to check; empty where it has one.
        fails: why the row raises also without autocast, on some machines or on all; then the region must raise as well.
        only: device types, or backends by their id, that have a kernel for it; all where empty. Elsewhere
            its rule is seen at its entry alone (`EntryCase`).
        free_phase: its outputs are vectors with a free sign or phase; their magnitudes are compared with
            float64's, and the gradients of the squares of these.
        device_only: why not even its rule runs without the device; its registration alone is held there.
        listed_only: why it has a row only where it has a rule; empty where it also stands for an unlisted op
            elsewhere.
        wide: the factor that takes its inputs to where bfloat16 gives what float16 cannot: by default so near zero that
            float16 has nothing left; a large one where such inputs all give the same.
        noise: the name of its error bounds in `amp_checks.families.ops.error`, those of ``rounding`` where it has none.
        reference: what computes it in float64, where the overload does not itself.
    """

    family: ClassVar[str] = "ops"

    id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    outputs: tuple[str, ...] = (RUN,)
    enters: str = ""
    call: str = ""
    no_gradient: str = ""
    fails: str = ""
    only: tuple[str, ...] = ()
    free_phase: bool = False
    device_only: str = ""
    listed_only: str = ""
    wide: float = 2.0**-26
    noise: str = "rounding"
    reference: Callable[..., Any] | None = None

    def _has_kernel(self, backend: Backend) -> bool:
        return not backend.emulated and not {backend.device_type, backend.id}.isdisjoint(self.only)

    def runs_on(self, backend: Backend) -> bool:
        """Where the op has a rule and a kernel, or (an op that all devices have) runs unlisted in a torch
        that knows it.
        """
        rule = cast_policy.of(self.id, backend.device_type)
        if self.device_only and backend.emulated:
            return False
        if rule is CastPolicy.BANNED or (self.only and not self._has_kernel(backend)):
            return False
        return rule is not CastPolicy.UNLISTED or (not self.listed_only and cast_policy.exists(self.id))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryCase(Row):
    """An op that this machine has no kernel for, seen at its entry alone; ``op`` is its row."""

    family: ClassVar[str] = "ops"

    op: OpCase

    @property
    def id(self) -> str:
        return f"{self.op.id}.entry"

    def runs_on(self, backend: Backend) -> bool:
        if self.op.device_only and backend.emulated:
            return False
        return self.op.id in cast_policy.declared(backend.device_type) and not self.op.runs_on(backend)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OfDeviceType(Row):
    """Base of a case that is about a device type as a whole: it runs where autocast has rules at all."""

    family: ClassVar[str] = "ops"

    def runs_on(self, backend: Backend) -> bool:
        return backend.device_type in DEVICE_TYPES


def op(name: str, *args: Any, **fields: Any) -> OpCase:
    """A row: ``op("mm", x(8, 12), x(12, 6))``; keywords of the op itself go to ``kwargs``."""
    return OpCase(id=name, args=args, **fields)
