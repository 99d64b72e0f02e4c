"""The shape of a planted fault of the family."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

Plant = Callable[[Backend], AbstractContextManager[Backend]]


def mutant(name: str, fault: str, plant: Plant, case: str, *killed_by: str) -> Mutant:
    """A row: see `Mutant`."""
    return Mutant(id=name, family="scaler", fault=fault, plant=plant, case=case, killed_by=killed_by)
