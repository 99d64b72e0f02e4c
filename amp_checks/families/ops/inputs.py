"""Inputs of an op as data: tensors are described by `T`, and made for a device and a dtype plan.

A *dtype plan* gives each floating tensor of a row its dtype: all float32, all in the region's low dtype,
mixed and so on. A `T` with a dtype of its own (indices, targets) keeps it under every plan.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_checks.torch_api import numerics


class Values(enum.StrEnum):
    """How the values of an input are drawn; where an op is defined only on part of the line, or wants a kind
    of matrix.
    """

    NORMAL = "normal"
    POSITIVE = "positive"
    """Uniform over 0.1 to 2."""
    UNIT = "unit"
    """Uniform over 0.05 to 0.95."""
    SIGNED_UNIT = "signed_unit"
    """Uniform over -0.9 to 0.9."""
    WEIGHT = "weight"
    """Uniform over -0.5 to 0.5, about as torch draws the weights of a small cell: larger ones close its gates."""
    NEAR_ONE = "near_one"
    """Uniform over 0.75 to 1.25: products of many stay within what float16 holds."""
    SPREAD = "spread"
    """Normal, each column larger than the one before."""
    SEPARATED = "separated"
    """An upper triangular matrix with a diagonal near 1, 2, 3 and so on: its eigenvalues, in any precision in order."""
    REFLECTOR = "reflector"
    """Uniform over 1.5 to 2: factors of Householder reflections that are far from singular."""
    EIGHTHS = "eighths"
    """Odd multiples of 1/8 between 0 and 1, which every dtype holds: their multiples by 2 are never whole."""
    GRID = "grid"
    """Odd multiples of 1/32 between -1 and 1: coordinates that every dtype holds, and that are on no pixel."""
    SIGN = "sign"
    """-1 or 1."""
    SPD = "spd"
    """Symmetric positive definite, condition number below 10."""
    REGULAR = "regular"
    """A matrix with distinct singular values between 1 and 2 plus a little noise: far from singular."""
    LOWER = "lower"
    """Lower triangular with a diagonal near 1.5."""
    LOG_SOFTMAX = "log_softmax"
    """Logarithms of probabilities along the last dimension."""
    INTEGERS = "integers"
    """The given ``values`` themselves."""


@dataclasses.dataclass(frozen=True, slots=True)
class T:
    """A tensor to be made.

    Attributes:
        shape: its shape; empty for 0-dim.
        draw: how its values are drawn.
        dtype: its dtype by name where it is fixed; None: as the plan says.
        values: the values, flat, for `Values.INTEGERS`.
        names: names of its dimensions.
        grad: whether a gradient may be asked for.
    """

    shape: tuple[int, ...]
    draw: Values = Values.NORMAL
    dtype: str | None = None
    values: tuple[int | float, ...] = ()
    names: tuple[str, ...] = ()
    grad: bool = True


def fixed(*shape: int, values: tuple[int | float, ...], dtype: str = "int64") -> T:
    """A tensor of given values and fixed dtype, without a gradient: indices, class targets, lengths."""
    return T(shape, Values.INTEGERS, dtype=dtype, values=values, grad=False)


class Plan(enum.StrEnum):
    """Which dtype each floating tensor gets. ``low`` is the region's dtype, ``other`` the other 16-bit
    float.
    """

    FLOAT32 = "float32"
    LOW = "low"
    OTHER = "other"
    FLOAT64 = "float64"
    INT64 = "int64"
    COMPLEX64 = "complex64"
    LOW_FIRST = "low then float32"
    FLOAT32_FIRST = "float32 then low"
    LOW_OTHER = "low then other"
    DOUBLE_FIRST = "float64 then float32"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One of the draws of a row's values.

    Attributes:
        number: 0 for the first; each number gives other values.
        factor: what the values of floating tensors are multiplied by, signs (`Values.SIGN`) apart.
    """

    number: int = 0
    factor: float = 1.0

    def seed(self, name: str) -> str:
        """The seed of that name in this draw."""
        return f"{name} draw {self.number}" if self.number else name


FIRST = Draw()


PLAN_NAMES: dict[Plan, tuple[str, str]] = {
    Plan.FLOAT32: ("float32", "float32"),
    Plan.LOW: ("low", "low"),
    Plan.OTHER: ("other", "other"),
    Plan.FLOAT64: ("float64", "float64"),
    Plan.INT64: ("int64", "int64"),
    Plan.COMPLEX64: ("complex64", "complex64"),
    Plan.LOW_FIRST: ("low", "float32"),
    Plan.FLOAT32_FIRST: ("float32", "low"),
    Plan.LOW_OTHER: ("low", "other"),
    Plan.DOUBLE_FIRST: ("float64", "float32"),
}
"""Dtypes of the first floating tensor and of the rest."""

_OTHER = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}


def dtype_in(plan: Plan, position: int, low: torch.dtype) -> torch.dtype:
    """The dtype that a plan gives to the floating tensor at that position."""
    name = PLAN_NAMES[plan][min(position, 1)]
    named = {"low": low, "other": _OTHER[low]}
    found: torch.dtype = named[name] if name in named else getattr(torch, name)
    return found


def tensors(structure: Any) -> Iterator[T]:
    """The `T` leaves of a nest of tuples, lists and dicts, in order."""
    if isinstance(structure, T):
        yield structure
    elif isinstance(structure, (tuple, list)):
        for part in structure:
            yield from tensors(part)
    elif isinstance(structure, dict):
        yield from tensors(tuple(structure.values()))


def make(structure: Any, *, plan: Plan, low: torch.dtype, device: str, seed: str, drawn: Draw = FIRST) -> Any:
    """The structure with each `T` made into a tensor on ``device``; the same values under every plan and
    device.

    Values are drawn in float32, with more digits than a 16-bit float keeps, so that each cast shows.
    """
    position = 0
    floating = 0

    def one(spec: T) -> torch.Tensor:
        nonlocal position, floating
        if spec.dtype is None:
            dtype = dtype_in(plan, floating, low)
            floating += 1
        else:
            dtype = getattr(torch, spec.dtype)
        position += 1
        values = draw(spec, seed=drawn.seed(f"{seed} {position}"))
        if spec.dtype is None and spec.draw is not Values.SIGN:
            values = values * drawn.factor
        made = values.to(dtype=dtype, device=device)
        # Named tensors are gone from torch 2.13 on, and from its type stubs.
        return getattr(made, "refine_names")(*spec.names) if spec.names else made  # noqa: B009

    return map_leaves(one, structure, T)


def map_leaves(function: Callable[[Any], Any], structure: Any, kind: type) -> Any:
    """A copy of a nest of tuples, lists and dicts with ``function`` applied to each leaf of that type."""
    if isinstance(structure, kind):
        return function(structure)
    if isinstance(structure, (tuple, list)):
        return type(structure)(map_leaves(function, part, kind) for part in structure)
    if isinstance(structure, dict):
        return {name: map_leaves(function, part, kind) for name, part in structure.items()}
    return structure


def draw(spec: T, *, seed: str, salted: bool = True) -> torch.Tensor:
    """The values of ``spec`` on the CPU, float32 (or exact integers); ``salted`` as of `numerics.seed_of`."""
    if spec.draw is Values.INTEGERS:
        return torch.tensor(spec.values, dtype=torch.float64).reshape(spec.shape)
    normal = numerics.randn(*(spec.shape or (1,)), seed=seed, salted=salted).reshape(spec.shape)
    uniform = 0.5 + 0.5 * torch.erf(normal / 2**0.5)
    ways: dict[Values, Callable[[], torch.Tensor]] = {
        Values.NORMAL: lambda: normal,
        Values.POSITIVE: lambda: 0.1 + 1.9 * uniform,
        Values.UNIT: lambda: 0.05 + 0.9 * uniform,
        Values.SIGNED_UNIT: lambda: 1.8 * uniform - 0.9,
        Values.WEIGHT: lambda: uniform - 0.5,
        Values.NEAR_ONE: lambda: 0.75 + 0.5 * uniform,
        Values.SEPARATED: lambda: torch.diag(1.0 + torch.arange(spec.shape[-1])) + 0.1 * torch.triu(normal),
        Values.REFLECTOR: lambda: 1.5 + 0.5 * uniform,
        Values.EIGHTHS: lambda: ((4 * uniform).floor().clamp(0, 3) * 2 + 1) / 8,
        Values.SPREAD: lambda: normal + 3.0 * torch.arange(spec.shape[-1]),
        Values.GRID: lambda: ((32 * uniform).floor().clamp(0, 31) * 2 - 31) / 32,
        Values.SIGN: lambda: torch.where(normal > 0, 1.0, -1.0),
        Values.SPD: lambda: _spd(normal),
        Values.REGULAR: lambda: _regular(normal),
        Values.LOWER: lambda: torch.tril(0.25 * normal, -1) + 1.5 * torch.eye(spec.shape[-1]),
        Values.LOG_SOFTMAX: lambda: torch.log_softmax(normal, -1),
    }
    return ways[spec.draw]()


def _spd(normal: torch.Tensor) -> torch.Tensor:
    size = normal.shape[-1]
    near: torch.Tensor = torch.eye(size) * torch.linspace(1.0, 2.0, size) + 0.1 / size * (normal + normal.mT)
    return (near + near.mT) / 2


def _regular(normal: torch.Tensor) -> torch.Tensor:
    rows, columns = normal.shape[-2:]
    diagonal = torch.zeros(rows, columns)
    diagonal.diagonal().copy_(torch.linspace(1.0, 2.0, min(rows, columns)))
    noise: torch.Tensor = 0.2 / max(rows, columns) * normal
    return diagonal + noise
