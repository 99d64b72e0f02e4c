"""All of torch's own op database, as one row: what a region may change is what ops with a rule change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from amp_checks.core import CastPolicy, Finding, exact
from amp_checks.families.ops import sweep
from amp_checks.families.ops.rows import OfDeviceType
from amp_checks.families.ops.sweep import Seen
from amp_checks.records import cast_policy
from amp_checks.torch_api.backend import Backend

NEEDS_CUDA = (
    "jiterator_unary",
    "jiterator_binary",
    "jiterator_4inputs_with_extra_args",
    "jiterator_binary_return_by_ref",
    "jiterator_2inputs_2outputs",
)
"""Ops of the database that compile a CUDA kernel as they run: they run nowhere else."""

RIGHT = "as without autocast, but for what ops with a rule change"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseCase(OfDeviceType):
    """The database, or the ops of it that are named; looked at in a process of its own."""

    id: str
    ops: tuple[str, ...] = ()
    full: bool = True


CASES: tuple[DatabaseCase, ...] = (
    DatabaseCase(id="op-database"),
    DatabaseCase(id="op-database.sample", ops=("tanh", "sigmoid", "mm", "sort", "var", "nn.functional.gelu")),
)


def check_op_database(case: DatabaseCase, backend: Backend) -> Iterator[Finding]:
    """Inside a region, every op of torch's database runs, and only ops with a rule change its result.

    Forward and backward, on up to three inputs of the database's own per op.
    """
    for seen in sweep.in_its_own_process(backend, case.ops, fault=sweep.planted_fault()):
        yield exact(
            seen.op,
            actual=RIGHT if _is_right(seen, backend) else seen.outcome,
            expected=RIGHT,
            why="unlisted ops run in the dtype of their inputs, torch.amp documentation",
        )


def _is_right(seen: Seen, backend: Backend) -> bool:
    if seen.outcome.startswith("raises"):
        return cast_policy.of(seen.op.rpartition(".")[2], backend.device_type) is CastPolicy.BANNED
    if seen.outcome == sweep.NOTHING_RAN:
        return seen.op in NEEDS_CUDA and (backend.emulated or backend.device_type != "cuda")
    return seen.outcome == sweep.AS_WITHOUT or bool(seen.listed)
