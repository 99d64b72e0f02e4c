"""All of torch's own op database, as one row: what a region may change is what ops with a rule change."""

from __future__ import annotations

import dataclasses

from amp_checks.core import Backend
from amp_checks.records import cast_policy

NEEDS_CUDA = (
    "jiterator_unary",
    "jiterator_binary",
    "jiterator_4inputs_with_extra_args",
    "jiterator_binary_return_by_ref",
    "jiterator_2inputs_2outputs",
)
"""Ops of the database that compile a CUDA kernel as they run: they run nowhere else."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseCase:
    """The database, or the ops of it that are named; looked at in a process of its own."""

    id: str
    ops: tuple[str, ...] = ()
    full: bool = True
    family: str = "ops"

    def runs_on(self, backend: Backend) -> bool:
        return backend.device_type in cast_policy.DEVICE_TYPES


CASES: tuple[DatabaseCase, ...] = (
    DatabaseCase(id="op-database"),
    DatabaseCase(id="op-database.sample", ops=("tanh", "sigmoid", "mm", "sort", "var", "nn.functional.gelu")),
)
