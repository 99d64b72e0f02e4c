"""What a row of the family is, and the decorator that makes one of a check."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from packaging.version import Version

from amp_checks.core import Check, Finding, Value, exact
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend

C = TypeVar("C", bound=Check)

THREADS_CRASH = Version(torch.__version__) < Version("2.13")
"""Measured: 2.11.0 ends in a segmentation fault in one run of the family of two; 2.13.0 and 2.15.0 did not."""
SAME = "every rank takes the same step"
JOINED = "the step of one process on the joined batch"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DistributedRow(Row):
    """A promise about several ranks, with its check.

    Attributes:
        source: where the promise is made: documentation, the text of an error, a thread, arithmetic, or an observation.
        behaviours: numbers of `amp_checks.families.distributed.behaviours.BEHAVIOURS` that the row is about.
        check: the code.
        variant: which variant of the check, where it has several.
        only: the device type whose rules the promise is about; empty for all.
    """

    family: ClassVar[str] = "distributed"

    id: str
    source: str
    behaviours: tuple[int, ...]
    check: Check
    variant: Any = None
    only: str = ""

    def runs_on(self, backend: Backend) -> bool:
        """CPU tensors, under the CPU's own rules or CUDA's: gloo carries them, and no device is asked for.

        Not on a torch whose threaded process group brings the interpreter down.
        """
        held = backend.device_type == "cpu" or (backend.emulated and backend.device_type == "cuda")
        return held and not THREADS_CRASH and self.only in {"", backend.device_type}

    def exact(self, subject: str, *, actual: Value, expected: Value) -> Finding:
        return exact(subject, actual=actual, expected=expected, why=self.source)

    def each(self, subject: str, seen: list[Value], expected: Value) -> list[Finding]:
        """One finding a rank: what it has is what it should have."""
        return [self.exact(f"rank {rank}: {subject}", actual=it, expected=expected) for rank, it in enumerate(seen)]


ROWS: list[DistributedRow] = []
"""Every row, as the modules of checks are imported."""


def promise(
    name: str, *behaviours: int, source: str, variants: tuple[Any, ...] = (), only: str = "", full: bool = False
) -> Callable[[C], C]:
    """Make the decorated check a row of that id, or one row a variant: ``name-variant``."""

    def add(check: C) -> C:
        for variant in variants or (None,):
            row = name if variant is None else f"{name}-{variant}"
            ROWS.append(
                DistributedRow(
                    id=row, behaviours=behaviours, source=source, check=check, variant=variant, only=only, full=full
                )
            )
        return check

    return add
