"""Ops that do not run in 16 bits: what AMP users must run in FP32, outside autocast.

One op is one row, in the table of its topic. Where a device lacks it is not written here: the record of
low-precision support says it (`amp_checks.records.low_precision`), and a recorded lack without a row fails a check.
"""

from __future__ import annotations

import dataclasses

from amp_checks.families.fp32_only import values
from amp_checks.families.fp32_only.rows import Fp32OnlyCase, Input, RecordCase
from amp_checks.families.fp32_only.tables import linalg, other, signal, special
from amp_checks.families.fp32_only.values import ValueCase
from amp_checks.families.ranges import cases
from amp_checks.families.ranges.inputs import RangeCase

__all__ = ["CASES", "EXCEPTIONS", "FORCED", "Fp32OnlyCase", "Input", "RecordCase", "ValueCase"]

_OLD_GPU = "the database asks the GPU that is there, and there was none: only GPUs before sm_53 or sm_80 lack it"

EXCEPTIONS: dict[str, dict[str, str]] = {
    "cpu": {},
    "cuda": {
        "broadcast_shapes": "takes shapes, no tensors: it has no dtype",
        **dict.fromkeys(
            (
                "__rmatmul__ addbmm baddbmm matmul nn.functional.bilinear nn.functional.embedding_bag "
                "torch.ops.aten._efficient_attention_forward"
            ).split(),
            _OLD_GPU,
        ),
    },
}
"""By device type: ops that are recorded to lack a low dtype and have no row, and why."""

_TABLES: tuple[Fp32OnlyCase, ...] = (*linalg.ROWS, *special.ROWS, *signal.ROWS, *other.ROWS)

_COMPILED = ("linalg.inv", "quantile", "special.erfcx", "fft.rfft", "linalg.det", "mm")
_COMPILED_IN_GATE = ("linalg.inv", "mm")

FORCED: tuple[Fp32OnlyCase, ...] = (
    *_TABLES,
    *(
        dataclasses.replace(row, variant="compiled", compiled=True, full=row.declared not in _COMPILED_IN_GATE)
        for row in _TABLES
        if row.declared in _COMPILED
    ),
)
"""Every row of an op that is forced to FP32."""

CASES: tuple[Fp32OnlyCase | ValueCase | RecordCase | RangeCase, ...] = (
    RecordCase(id="record"),
    RecordCase(id="record-run-again", full=True),
    RecordCase(id="record-of-three-run-again", ops=("linalg.inv", "cdist", "mm"), full=True),
    *FORCED,
    *values.ROWS,
    *cases.CASES,
)
