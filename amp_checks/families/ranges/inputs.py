"""Rows of the range table: an op, how its inputs of a magnitude are made, and what limits its range, in words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from amp_checks.core import CastPolicy, SuiteError
from amp_checks.families.ops.inputs import T, Values, draw, map_leaves, tensors
from amp_checks.families.ops.rows import OpCase
from amp_checks.records import cast_policy as policy
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend

Direction = str
FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"
DIRECTIONS = (FORWARD, BACKWARD)

FLOAT32_POLICIES = (CastPolicy.FP32, CastPolicy.FP32_SET_OPT_DTYPE, CastPolicy.FP32_APPEND_DTYPE)

STRUCTURED = (Values.SPD, Values.REGULAR, Values.LOWER, Values.LOG_SOFTMAX)
"""Draws whose elements belong together: they are scaled, never rearranged."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A floating input of a row.

    Attributes:
        shape: its shape.
        pattern: ``spread`` (both signs), ``positive`` (0.5 to 1), ``equal`` (all 1), ``alternating`` (1, -1, ...),
            or a `Values` of the ops table.
        scaled: whether it has the magnitude asked for: its largest element is then that magnitude, elsewhere 1.
        grad: whether its gradient is asked for.
    """

    shape: tuple[int, ...]
    pattern: str = "spread"
    scaled: bool = True
    grad: bool = True

    def values(self, seed: str, *, salted: bool) -> torch.Tensor:
        """The pattern in float64; where it is scaled, its first element is 1 and none is larger in magnitude.

        ``salted``: as of `amp_checks.torch_api.numerics.seed_of`; False for the pattern that a row's limits hold for.
        """
        count = torch.Size(self.shape).numel()
        match self.pattern:
            case "equal":
                return torch.ones(self.shape, dtype=torch.float64)
            case "alternating":
                signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
                return signs.repeat(count // 2 + 1)[:count].reshape(self.shape)
            case "spread":
                found = draw(T(self.shape, Values.SIGNED_UNIT), seed=seed, salted=salted).double()
            case "positive":
                found = 0.5 + draw(T(self.shape, Values.UNIT), seed=seed, salted=salted).double() / 2
            case other:
                kind = Values(other)
                found = draw(T(self.shape, kind), seed=seed, salted=salted).double()
                if not self.scaled:
                    return found
                if kind in STRUCTURED:
                    return found / found.abs().max()
        return led_by_one(found)


def led_by_one(values: torch.Tensor) -> torch.Tensor:
    """The values over their largest, which comes first: in closed forms, the largest input meets the first weight."""
    flat = values.reshape(-1).clone()
    largest = int(flat.abs().argmax())
    flat[[0, largest]] = flat[[largest, 0]]
    flat /= flat[0].clone()
    return flat.reshape(values.shape)


SAFE = "safe"
OVERFLOWS = "gives inf"
NAN = "gives NaN"
UNDERFLOWS = "underflows"
INACCURATE = "inaccurate"
FLOAT32 = "float32 too"
END = "end of the span"
"""What a magnitude gives, in words; `END` stands for all that lies beyond the span of the dtype."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """An end of a safe range: the last safe magnitude, and what the next one gives."""

    at: float
    gives: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A stated range: where an op is unsafe although its rounded result would be fine, or an end in closed form.

    Attributes:
        low, high: its ends; None: the one that rounding the float64 result once would have.
        nowhere: what every magnitude gives, for an op that is safe at none.
        why: the reason, in words and figures.
    """

    why: str
    low: Edge | None = None
    high: Edge | None = None
    nowhere: str = ""


def up_to(high: float, gives: str, why: str) -> Limits:
    """Safe up to a magnitude."""
    return Limits(high=Edge(high, gives), why=why)


def down_to(low: float, gives: str, why: str) -> Limits:
    """Safe down to a magnitude."""
    return Limits(low=Edge(low, gives), why=why)


def between(low: float, below: str, high: float, above: str, why: str) -> Limits:
    """Safe between two magnitudes."""
    return Limits(low=Edge(low, below), high=Edge(high, above), why=why)


def nowhere(gives: str, why: str) -> Limits:
    """Safe at no magnitude."""
    return Limits(nowhere=gives, why=why)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RangeCase(Row):
    """An op and the magnitudes of its input at which AMP gives what FP32 gives.

    Where nothing else is stated, the row claims that AMP is safe wherever the float64 result (and each gradient),
    rounded once, is finite and within the bound, and FP32 itself is: that the op's own arithmetic costs no range.

    Attributes:
        name: of the op, as the table shows it.
        op: called with the inputs; gives a tensor or a tuple of them.
        inputs: its floating inputs.
        overload: the overload whose cast policy applies; empty: a composition of several ops.
        covers: overloads of the ops table for which this row stands.
        limits: what is stated, by ``"float16 forward"``, or for one device type ``"cuda float16 forward"``.
        at_zero: what all-zero scaled inputs give where FP32 gives something finite: empty for finite, else the reason
            why they do not, by the same keys.
        exact: what gives the float64 reference, where that must not be the op's own code; else the op.
        devices: device types whose ranges were measured.
    """

    family: ClassVar[str] = "fp32-only"

    name: str
    op: Callable[..., Any]
    inputs: tuple[Input, ...]
    overload: str = ""
    covers: tuple[str, ...] = ()
    limits: Mapping[str, Limits] = dataclasses.field(default_factory=dict)
    at_zero: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exact: Callable[..., Any] | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    full: bool = True

    @property
    def id(self) -> str:
        return "range-" + re.sub(r"[^\w.]+", "-", self.name)

    @property
    def differentiable(self) -> bool:
        return any(given.grad for given in self.inputs)

    def policy(self, device_type: str) -> str:
        """The cast policy that applies, by name; ``composition`` for several ops."""
        return str(policy.of(self.overload, device_type)) if self.overload else "composition"

    def runs_in_fp32(self, backend: Backend) -> bool:
        """Whether autocast runs the op in FP32 there, whatever it is given."""
        return bool(self.overload) and policy.of(self.overload, backend.device_type) in FLOAT32_POLICIES

    def runs_on(self, backend: Backend) -> bool:
        if backend.device_type not in self.devices:
            return False
        return not self.overload or (
            policy.exists(self.overload) and policy.of(self.overload, backend.device_type) is not CastPolicy.BANNED
        )

    def stated(self, backend: Backend, direction: Direction) -> Limits | None:
        """What the row states of that dtype and direction on that device type.

        Nothing where autocast runs the op in FP32: limits are those of 16 bits.
        """
        found: Limits | None = self._of(self.limits, backend, direction)
        return found

    def zero(self, backend: Backend, direction: Direction) -> str:
        """Why all-zero inputs give something not finite; empty where they should not."""
        return self._of(self.at_zero, backend, direction) or ""

    def _of(self, table: Mapping[str, Any], backend: Backend, direction: Direction) -> Any:
        own = table.get(f"{backend.device_type} {backend.dtype} {direction}")
        if own is not None or self.runs_in_fp32(backend):
            return own
        return table.get(f"{backend.dtype} {direction}")


def of_table(
    row: OpCase, *, scaled: tuple[int, ...] = (0,), patterns: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The op and inputs of a row of the ops table, for `RangeCase`.

    Args:
        row: of the ops table.
        scaled: positions, among its floating tensors, of those that have the magnitude; others keep theirs.
        patterns: patterns other than the table's, by position.
    """
    specs = [spec for spec in tensors((row.args, row.kwargs)) if spec.dtype is None]
    if not specs or max(scaled) >= len(specs):
        raise SuiteError(
            f"range of {row.id}: its row has {len(specs)} floating tensors, and position {max(scaled)} is asked for"
        )
    inputs = tuple(
        Input(
            shape=spec.shape,
            pattern=(patterns or {}).get(place, str(spec.draw)),
            scaled=place in scaled,
            grad=spec.grad and not row.no_gradient,
        )
        for place, spec in enumerate(specs)
    )

    def call(*given: torch.Tensor) -> Any:
        left = iter(given)

        def one(spec: T) -> torch.Tensor:
            if spec.dtype is None:
                return next(left)
            made = draw(spec, seed=f"{row.id} fixed")
            return made.to(dtype=getattr(torch, spec.dtype), device=given[0].device)

        args, kwargs = map_leaves(one, (row.args, row.kwargs), T)
        base, _, suffix = row.id.partition(".")
        return getattr(getattr(torch.ops.aten, base), suffix or "default")(*args, **kwargs)

    return {"op": call, "inputs": inputs, "overload": row.id, "covers": (row.id,)}
