"""What a row of the fp32-only tables is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from amp_checks.records import low_precision
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A seeded float32 input.

    Attributes:
        shape: its shape; square in its last two dimensions for every kind of matrix.
        kind: ``normal`` (standard normal), ``unit`` (0.1 to 0.9), ``positive`` (0.5 to 2.5), ``distances`` (a
            point per row, none near another), or a matrix: ``regular`` (far from singular), ``spread`` (symmetric,
            its eigenvalues positive and far from each other), ``spd`` (symmetric positive definite), ``lower``
            (triangular).
    """

    shape: tuple[int, ...]
    kind: str = "normal"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fp32OnlyCase(Row):
    """An op that is forced to FP32.

    Attributes:
        op: called with the inputs; gives a tensor or a tuple of tensors. Where its result is not unique (the sign of
            an eigenvector), it gives what is.
        inputs: what it is called with.
        declared: its name in torch's database of ops.
        variant: tells rows of one op apart.
        differentiable: whether gradients flow through it.
        supported: the devices run it in 16 bits, and it is forced by choice; else the row runs where the record says
            that a device lacks it (`amp_checks.records.low_precision`).
        compiled: its remedy is also tried under ``torch.compile(backend="aot_eager")``, and nothing else is.
    """

    family: ClassVar[str] = "fp32-only"

    op: Callable[..., Any]
    inputs: tuple[Input, ...]
    declared: str
    variant: str = ""
    differentiable: bool = True
    supported: bool = False
    compiled: bool = False

    @property
    def id(self) -> str:
        return f"{self.declared}.{self.variant}" if self.variant else self.declared

    def runs_on(self, backend: Backend) -> bool:
        if self.compiled and backend.emulated:
            return False  # no graph is compiled under emulation
        if self.supported:
            return backend.device_type in low_precision.devices()
        return self.lacks(backend) != ""

    def lacks(self, backend: Backend) -> str:
        """``forward`` or ``backward``: what of it the backend's device is recorded to lack; empty where nothing."""
        if backend.device_type not in low_precision.devices():
            return ""
        seen = low_precision.here(self.declared, backend.device_type, backend.dtype)
        return "" if seen is None else seen.lacks


VECTOR = (Input(shape=(8, 8)),)
UNIT = (Input(shape=(8, 8), kind="unit"),)
POSITIVE = (Input(shape=(8, 8), kind="positive"),)
REGULAR = (Input(shape=(8, 8), kind="regular"),)
SPREAD = (Input(shape=(8, 8), kind="spread"),)
SPD = (Input(shape=(8, 8), kind="spd"),)
LOWER = (Input(shape=(8, 8), kind="lower"),)
RIGHT = (Input(shape=(8, 3)),)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordCase(Row):
    """The record of low-precision support itself, against the tables (and, with ``full``, against the device).

    ``ops``: names of those that are run again; all of torch's database where there is none.
    """

    family: ClassVar[str] = "fp32-only"

    id: str
    ops: tuple[str, ...] = ()

    def runs_on(self, backend: Backend) -> bool:
        if backend.device_type not in low_precision.devices():
            return False
        return not (self.full and backend.emulated)
