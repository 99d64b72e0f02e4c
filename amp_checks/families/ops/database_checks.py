"""The check over torch's own op database, which runs in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks import ops_sweep, policy
from amp_checks.cases.ops_database import NEEDS_CUDA, DatabaseCase
from amp_checks.core import Backend, CastPolicy, Finding, exact
from amp_checks.ops_sweep import Seen

RIGHT = "as without autocast, but for what ops with a rule change"


def check_op_database(case: DatabaseCase, backend: Backend) -> Iterator[Finding]:
    """Inside a region, every op of torch's database runs, and only ops with a rule change its result.

    Forward and backward, on up to three inputs of the database's own per op.
    """
    for seen in ops_sweep.in_its_own_process(backend, case.ops, fault=ops_sweep.planted_fault()):
        yield exact(
            seen.op,
            actual=RIGHT if _is_right(seen, backend) else seen.outcome,
            expected=RIGHT,
            why="unlisted ops run in the dtype of their inputs, torch.amp documentation",
        )


def _is_right(seen: Seen, backend: Backend) -> bool:
    if seen.outcome.startswith("raises"):
        return policy.of(seen.op.rpartition(".")[2], backend.device_type) is CastPolicy.BANNED
    if seen.outcome == ops_sweep.NOTHING_RAN:
        return seen.op in NEEDS_CUDA and (backend.emulated or backend.device_type != "cuda")
    return seen.outcome == ops_sweep.AS_WITHOUT or bool(seen.listed)
