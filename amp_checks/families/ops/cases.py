"""The table of ops: one row for each overload that any device type's autocast has a rule for.

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
from amp_checks.families.ops.tables import linalg, pointwise, products, spatial
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

SAMPLE = frozenset(
    """
    mm linear bmm addmm matmul addmv baddbmm linalg_vecdot einsum prelu conv1d conv2d conv_transpose2d.input
    _convolution.deprecated scaled_dot_product_attention lstm_cell gru_cell exp log pow.Tensor_Scalar rsqrt softplus
    layer_norm native_layer_norm group_norm rms_norm batch_norm cosine_similarity mse_loss l1_loss nll_loss kl_div
    binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss ctc_loss.Tensor cdist logsumexp
    upsample_bilinear2d upsample_nearest2d grid_sampler_2d avg_pool3d max_unpool2d reflection_pad1d trace quantile
    polar view_as_complex fft_fft fft_rfft stft.center linalg_inv linalg_solve linalg_svd linalg_qr softmax.int
    log_softmax.int sum sum.dim_IntList cumsum prod linalg_vector_norm norm.Scalar norm.ScalarOpt_dim addcmul atan2
    bilinear cat stack dot grid_sampler index_put index_copy scatter_add tensordot
    """.split()
)
"""Overloads that every run looks at in all ways; a full run does so with all, and every run sees every rule at work."""

OVERLOADS: dict[str, OpCase] = {
    row.id: dataclasses.replace(row, full=row.id not in SAMPLE)
    for row in (*products.ROWS, *pointwise.ROWS, *spatial.ROWS, *linalg.ROWS)
}


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

GATED = frozenset({"mm", "linear", "conv2d", "mse_loss", "softmax.int", "norm.Scalar", "addcmul", "cat", "prod", "exp"})
"""Overloads whose variants every run looks at; those of the others are left to a full run."""


def _variants() -> Iterator[Variant]:
    for row in OVERLOADS.values():
        full = row.id not in GATED
        if not row.call:
            yield DtypesCase(op=row, full=full)
            yield NestingCase(op=row, full=full)
        if takes_dtype(row):
            yield ExplicitDtypeCase(op=row, full=full)
        if promotes_somewhere(row) and not row.call:
            yield PromotionCase(op=row, full=full)
        for form in uncast_forms(row):
            yield UncastFormCase(op=row, form=form, full=full)
    yield from spellings(OVERLOADS)


def _seen_at_entry_alone(row: OpCase) -> bool:
    """Whether some device type has a rule for the op that can be seen at work where the device is not there."""
    return bool(set(row.only) - {"cpu"}) and not row.device_only


CASES: tuple[AnyCase, ...] = (
    RegistrationCase(),
    RulesCase(),
    BannedCase(op=OVERLOADS["binary_cross_entropy"]),
    *OVERLOADS.values(),
    *(EntryCase(op=row, full=True) for row in OVERLOADS.values() if _seen_at_entry_alone(row)),
    *_variants(),
    *regions.CASES,
    *database.CASES,
)
