"""Work out which op each wrong remedy must fail for: ``python benchmarks/fp32_only_wrong_remedies.py``.

It writes ``fixtures/fp32_only/wrong_remedies.json``, from the recorded cast policies, the record of low-precision
support, and what is written below of ops that call others. Nothing is run: the verdicts stand before any check does.

* *float in the enabled region*: the input is FP32, autocast is on. An op whose own rule is FP32 runs with autocast off
  inside; one without a rule takes its FP32 input as it is. So only these fail: ops that autocast lowers, and ops
  without a rule that call one that it lowers.
* *disabled region without the cast*: what lacks 16 bits raises; what has them gives the low dtype. All fail.
* *result cast instead of the input*: what lacks 16 bits raises; what has them has rounded its result. All fail.
* *low dtype on the way in*: an FP32 input is rounded before it is FP32 again. All fail whose result moves with the last
  bits of their input; those that count or compare do not.
"""

from __future__ import annotations

import json
from pathlib import Path

from amp_checks.core import CastPolicy
from amp_checks.families.fp32_only.cases import FORCED
from amp_checks.families.fp32_only.rows import Fp32OnlyCase
from amp_checks.records import cast_policy, low_precision

OUT = Path(__file__).parent.parent / "fixtures" / "fp32_only" / "wrong_remedies.json"

CALLS: dict[str, str] = {
    "linalg.pinv": "matmul",
    "linalg.pinv.hermitian": "matmul",
    "linalg.pinv.singular": "matmul",
    "pinverse": "matmul",
    "linalg.matrix_power": "matmul",
    "svd_lowrank": "matmul",
    "pca_lowrank": "matmul",
}
"""Ops without a lowered rule of their own, and the op with one that their kernel or Python code calls."""

CPU_CALLS = {"linalg.polar": "matmul"}
"""The same of kernels that the CPU has for itself (docs/decisions/0020); what a device's own calls is not known."""

PYTHON = ("svd_lowrank", "pca_lowrank")
"""Python functions: they have no rule of their own, whatever is listed under their name."""

COUNTS = {
    "angle": "of a real number it is 0 or pi: the sign decides",
    "histc": "it counts, and no input lies near the edge of a bin",
    "histogramdd": "its counts are looked at, and no input lies near the edge of a bin",
    "linalg.matrix_rank": "it counts singular values far from zero",
    "linalg.matrix_rank.hermitian": "it counts eigenvalues far from zero",
}


def names_of(row: Fp32OnlyCase) -> set[str]:
    """The dispatcher's names that a row's op may have, without overload."""
    parts = row.declared.removeprefix("nn.functional.").split(".")
    return {parts[0], "_".join(parts[:2])} if parts[0] not in ("fft", "linalg", "special") else {"_".join(parts[:2])}


def policy_of(names: set[str], rules: dict[str, CastPolicy]) -> CastPolicy:
    """The policy of the first overload that is listed."""
    found = [rule for op, rule in rules.items() if op.partition(".")[0] in names]
    return found[0] if found else CastPolicy.UNLISTED


def float_in_enabled_region(row: Fp32OnlyCase, device: str, rules: dict[str, CastPolicy]) -> str:
    own = CastPolicy.UNLISTED if row.declared in PYTHON else policy_of(names_of(row), rules)
    if own is CastPolicy.LOWER_PRECISION_FP:
        return "fails: autocast lowers it again"
    if own is not CastPolicy.UNLISTED:
        return f"indifferent: its own rule is {own}"
    called = {**CALLS, **(CPU_CALLS if device == "cpu" else {})}.get(row.declared)
    if called is not None and policy_of({called}, rules) is CastPolicy.LOWER_PRECISION_FP:
        return f"fails: it calls {called}, which autocast lowers"
    return "indifferent: it has no rule, and calls nothing that autocast lowers"


def verdicts(row: Fp32OnlyCase, device: str, rules: dict[str, CastPolicy]) -> dict[str, str]:
    has = "gives the low dtype" if row.supported else "raises"
    counts = COUNTS.get(row.declared)
    return {
        "float in the enabled region": float_in_enabled_region(row, device, rules),
        "disabled region without the cast": f"fails: it {has}",
        "result cast instead of the input": f"fails: it {'has rounded' if row.supported else 'raises'}",
        "low dtype on the way in": f"indifferent: {counts}" if counts else "fails: the input has lost its last bits",
    }


def matrix() -> dict[str, object]:
    """Torch version -> device type -> row -> wrong remedy -> verdict and reason."""
    tables: dict[str, object] = {}
    for version, found in low_precision.recorded().items():
        devices: dict[str, object] = {}
        for device, record in found.items():
            table = cast_policy.table_for(version)
            rules = dict(table.of(device, cuda_build=True))
            lacking = {name for ops in record.ops.values() for name, seen in ops.items() if seen.lacks}
            devices[device] = {
                row.id: verdicts(row, device, rules)
                for row in FORCED
                if not row.compiled and (row.supported or row.declared in lacking)
            }
        tables[version] = devices
    return {
        "source": "fixtures/cast_policy, fixtures/low_precision_support, and the reasoning of the command",
        "command": "python benchmarks/fp32_only_wrong_remedies.py",
        "torch": tables,
    }


def dumps(value: object, depth: int = 0) -> str:
    """JSON with the verdicts on one row on one line."""
    if not isinstance(value, dict) or (value and all(isinstance(each, str) for each in value.values()) and depth > 2):
        return json.dumps(value)
    pad = " " * (depth + 1)
    inner = ",\n".join(f"{pad}{json.dumps(name)}: {dumps(each, depth + 1)}" for name, each in value.items())
    return f"{{\n{inner}\n{' ' * depth}}}"


if __name__ == "__main__":
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(dumps(matrix()) + "\n", encoding="utf-8")
    print(OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT)
