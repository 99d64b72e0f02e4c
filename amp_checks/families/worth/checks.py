"""What is counted of one iteration, held to what the program's shapes promise; exact on every backend."""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.core import Check, Finding, bounded, exact
from amp_checks.families.worth.cases import WorthRow
from amp_checks.torch_api.backend import Backend
from amp_checks.worth import devices
from amp_checks.worth.report import Worth, worth


def checks_for(row: WorthRow) -> Iterator[Check]:
    del row
    yield check_saved_bytes
    yield check_products_in_16_bits
    yield check_casts


def _counted(row: WorthRow, backend: Backend) -> Worth:
    return worth(row.case(), backend, devices.device(devices.DEFAULT))


_SLACK = 1e-9
"""A share that equals its bound holds."""


def check_saved_bytes(row: WorthRow, backend: Backend) -> Iterator[Finding]:
    """Forward keeps at most the stated share of FP32's bytes for backward; copies of weights are no part of it."""
    found = _counted(row, backend)
    yield bounded(
        "bytes kept for backward",
        ratio=found.saved_share,
        threshold=row.saved_share + _SLACK,
        actual=f"{found.amp.saved_bytes} of {found.fp32.saved_bytes}",
        expected=f"at most {row.saved_share:.4f} of FP32's",
        why=row.why,
    )


def check_products_in_16_bits(row: WorthRow, backend: Backend) -> Iterator[Finding]:
    """Every product runs in 16 bits, and AMP computes as many FLOPs as FP32."""
    found = _counted(row, backend)
    yield exact("FLOPs in 16 bits", actual=found.amp.low_flops, expected=found.fp32.flops, why="rule of products")
    yield exact("FLOPs", actual=found.amp.flops, expected=found.fp32.flops, why="a cast changes no shape")


def check_casts(row: WorthRow, backend: Backend) -> Iterator[Finding]:
    """Each weight is cast once an iteration, by autocast's cache, and the program casts nothing itself."""
    found = _counted(row, backend).amp
    weights = sum(calls for op, calls in found.ops if op.of_weight and op.phase == "forward")
    yield exact(
        "casts of weights", actual=weights, expected=row.weight_casts, why="weights and biases of linear layers"
    )
    yield exact("casts in the program", actual=found.casts("program")[0], expected=0, why="there is none in its code")
