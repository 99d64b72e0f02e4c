"""The table of ops: one row for each overload that any device type's autocast has a rule for, and the ops most used of
those without one.

To add an op, add a row to the table of its kind; its policy comes from ``fixtures/cast_policy/``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from amp_checks.core import CastPolicy
from amp_checks.families.ops import database
from amp_checks.families.ops.database import DatabaseCase
from amp_checks.families.ops.regions import cases as regions
from amp_checks.families.ops.regions.program import RegionCase
from amp_checks.families.ops.rows import EntryCase, OfDeviceType, OpCase
from amp_checks.families.ops.tables import linalg, pointwise, products, spatial, unlisted
from amp_checks.families.ops.tables.spellings import spellings
from amp_checks.families.ops.variants import (
    DtypesCase,
    ExplicitDtypeCase,
    NestingCase,
    PromotionCase,
    UncastFormCase,
    Variant,
    promotes_somewhere,
    takes_dtype,
    uncast_forms,
)
from amp_checks.records import cast_policy
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend

OVERLOADS: dict[str, OpCase] = {row.id: row for row in (*products.ROWS, *pointwise.ROWS, *spatial.ROWS, *linalg.ROWS)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BannedCase(Row):
    """An op that a device's autocast refuses; ``op`` is its ordinary row."""

    family: ClassVar[str] = "ops"

    op: OpCase

    @property
    def id(self) -> str:
        return f"{self.op.id}.banned"

    def runs_on(self, backend: Backend) -> bool:
        return cast_policy.of(self.op.id, backend.device_type) is CastPolicy.BANNED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationCase(OfDeviceType):
    """The list of rules that this torch registers for a device type, against the recorded one."""

    id: str = "registrations"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RulesCase(OfDeviceType):
    """Every rule of a device type, seen at the entry of its op."""

    id: str = "rules"


AnyCase = OpCase | EntryCase | BannedCase | RegistrationCase | RulesCase | Variant | RegionCase | DatabaseCase


def _variants() -> Iterator[Variant]:
    for row in OVERLOADS.values():
        if not row.call:
            yield DtypesCase(op=row)
            yield NestingCase(op=row)
        if takes_dtype(row):
            yield ExplicitDtypeCase(op=row)
        if promotes_somewhere(row) and not row.call:
            yield PromotionCase(op=row)
        for form in uncast_forms(row):
            yield UncastFormCase(op=row, form=form)
    for row in unlisted.ROWS:
        for form in uncast_forms(row):
            yield UncastFormCase(op=row, form=form)
    yield from spellings(OVERLOADS)


def _seen_at_entry_alone(row: OpCase) -> bool:
    """Whether some device type has a rule for the op that can be seen at work where the device is not there."""
    return bool(set(row.only) - {"cpu"}) and not row.device_only


CASES: tuple[AnyCase, ...] = (
    RegistrationCase(),
    RulesCase(),
    BannedCase(op=OVERLOADS["binary_cross_entropy"]),
    *OVERLOADS.values(),
    *unlisted.ROWS,
    *(EntryCase(op=row) for row in OVERLOADS.values() if _seen_at_entry_alone(row)),
    *_variants(),
    *regions.CASES,
    *database.CASES,
)
