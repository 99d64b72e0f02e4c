"""The sample of planted faults that every run tries, as cases of a family of its own."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from amp_checks import backends
from amp_checks.suite import planting
from amp_checks.suite.family import FAMILIES
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlantedCase(Row):
    """A mutant of the sample, on the backends it was drawn for."""

    family: ClassVar[str] = "planted"

    mutant: planting.Mutant
    backend_ids: frozenset[str]

    @property
    def id(self) -> str:
        return self.mutant.id

    def runs_on(self, backend: Backend) -> bool:
        return backend.id in self.backend_ids


def _draw() -> tuple[PlantedCase, ...]:
    """One draw for each group of backends that a default run may use, so that any selection keeps a full sample."""
    drawn: dict[str, set[str]] = {}
    mutants: dict[str, planting.Mutant] = {}
    groups = (
        ("cuda-float16", "cuda-bfloat16"),
        ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"),
    )
    others = [name for name in FAMILIES if name != "planted" and planting.mutants(name)]
    for group in groups:
        for mutant, backend in planting.sample([backends.backend(name) for name in group], families=others):
            mutants[mutant.id] = mutant
            drawn.setdefault(mutant.id, set()).add(backend.id)
    return tuple(PlantedCase(mutant=mutants[name], backend_ids=frozenset(ids)) for name, ids in drawn.items())


CASES = _draw()
