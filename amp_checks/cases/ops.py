"""The table of ops: one row for each overload that any device type's autocast has a rule for.

To add an op, add a row to the table of its kind; its policy comes from ``fixtures/cast_policy/``.
"""

from __future__ import annotations

import dataclasses

from amp_checks import policy
from amp_checks.cases import ops_linalg, ops_pointwise, ops_products, ops_spatial
from amp_checks.cases.ops_rows import EntryCase, OpCase
from amp_checks.core import Backend, CastPolicy

OVERLOADS: dict[str, OpCase] = {
    row.id: row for row in (*ops_products.ROWS, *ops_pointwise.ROWS, *ops_spatial.ROWS, *ops_linalg.ROWS)
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BannedCase:
    """An op that a device's autocast refuses; ``op`` is its ordinary row."""

    op: OpCase
    family: str = "ops"
    full: bool = False

    @property
    def id(self) -> str:
        return f"{self.op.id}.banned"

    def runs_on(self, backend: Backend) -> bool:
        return policy.of(self.op.id, backend.device_type) is CastPolicy.BANNED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationCase:
    """The list of rules that this torch registers for a device type, against the recorded one."""

    id: str = "registrations"
    family: str = "ops"
    full: bool = False

    def runs_on(self, backend: Backend) -> bool:
        return backend.device_type in policy.DEVICE_TYPES


CASES: tuple[OpCase | EntryCase | BannedCase | RegistrationCase, ...] = (
    RegistrationCase(),
    BannedCase(op=OVERLOADS["binary_cross_entropy"]),
    *OVERLOADS.values(),
    *(EntryCase(op=row) for row in OVERLOADS.values() if row.only),
)
