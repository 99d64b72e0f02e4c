"""The record of low-precision support: that every lack it names has a row, and that it still holds."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator

import torch

from amp_checks.core import Check, Finding, SuiteError, exact
from amp_checks.families.fp32_only import sweep
from amp_checks.families.fp32_only.rows import RecordCase
from amp_checks.records import low_precision
from amp_checks.torch_api.backend import Backend


def checks_for(case: RecordCase) -> Iterator[Check]:
    if case.full:
        yield check_record_holds
    else:
        yield check_every_unsupported_op_has_a_row
        yield check_every_row_is_unsupported_somewhere


def check_every_unsupported_op_has_a_row(case: RecordCase, backend: Backend) -> Iterator[Finding]:
    """An op that is recorded to lack the low dtype has a row, or is an exception by name."""
    from amp_checks.families.fp32_only.cases import EXCEPTIONS, FORCED

    del case
    known = {row.declared for row in FORCED} | set(EXCEPTIONS[backend.device_type])
    found = low_precision.record_for(torch.__version__, backend.device_type)
    lacking = sorted(name for name, seen in found.ops[backend.dtype].items() if seen.lacks)
    missing = [name for name in lacking if name not in known]
    yield exact(
        f"ops without {backend.dtype} on {backend.device_type} that no row forces to FP32",
        actual=", ".join(missing) or "none",
        expected="none",
        why=f"{len(lacking)} are recorded; add a row to amp_checks/families/fp32_only/tables/, or an exception",
    )


def check_every_row_is_unsupported_somewhere(case: RecordCase, backend: Backend) -> Iterator[Finding]:
    """A row, or an exception, that no record of any torch calls for is dead."""
    from amp_checks.families.fp32_only.cases import EXCEPTIONS, FORCED

    del case, backend
    lacking = {
        (device, name)
        for found in low_precision.recorded().values()
        for device, each in found.items()
        for seen in each.ops.values()
        for name, op in seen.items()
        if op.lacks
    }
    somewhere = {name for _, name in lacking}
    dead = {row.declared for row in FORCED if not row.supported and row.declared not in somewhere}
    dead |= {name for device, names in EXCEPTIONS.items() for name in names if (device, name) not in lacking}
    yield exact(
        "rows and exceptions that no record calls for",
        actual=", ".join(sorted(dead)) or "none",
        expected="none",
        why="the op runs in 16 bits now, on every recorded device and torch: remove its row",
    )


@functools.cache
def run_again(device_type: str, ops: tuple[str, ...]) -> low_precision.Found:
    """Both low dtypes come of one run, which takes minutes over the whole database."""
    return sweep.run_here(device_type, ops)


def check_record_holds(case: RecordCase, backend: Backend) -> Iterator[Finding]:
    """Run again, torch's op database shows the lacks that are recorded: one finding per op that changed."""
    if importlib.util.find_spec("expecttest") is None:
        raise SuiteError("the record cannot be run again: torch's op database needs expecttest (amp-checks[opinfo])")
    recorded = low_precision.record_for(torch.__version__, backend.device_type)
    now = run_again(backend.device_type, case.ops)
    before, after = (
        {
            name: seen.lacks
            for name, seen in found.ops[backend.dtype].items()
            if seen.lacks and (not case.ops or name in case.ops)
        }
        for found in (recorded, now)
    )
    yield exact(
        f"ops of the database that take float32 on {backend.device_type}",
        actual=now.looked_at > 0,
        expected=True,
        why=f"{recorded.looked_at} were recorded under torch {recorded.torch}, {recorded.machine}",
    )
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield exact(
                f"{name}: what of it lacks {backend.dtype}",
                actual=after.get(name, "nothing"),
                expected=before.get(name, "nothing"),
                why=f"recorded under torch {recorded.torch}, {recorded.machine}: record again, then see the rows",
            )
