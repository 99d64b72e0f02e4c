"""The shape of a planted fault of the family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

Plant = Callable[[Backend], AbstractContextManager[Backend]]


def _anywhere(_: Backend) -> bool:
    return True


def mutant(
    name: str, fault: str, plant: Plant, case: str, *killed_by: str, applies: Callable[[Backend], bool] = _anywhere
) -> Mutant:
    """A row: see `Mutant`."""
    return Mutant(
        id=name, family="distributed", fault=fault, plant=plant, case=case, killed_by=killed_by, applies=applies
    )


def replacing(owner: Any, name: str, made: Callable[[Any], Any]) -> Plant:
    """An attribute replaced, on all ranks, by what ``made`` makes of it."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        with mock.patch.object(owner, name, made(getattr(owner, name))):
            yield backend

    return plant
