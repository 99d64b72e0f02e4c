"""What a watched run showed, as text and JSON, from its record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.monitor import rules
from amp_checks.monitor.float16 import LARGEST
from amp_checks.monitor.journal import Record, Recorded
from amp_checks.monitor.rules import ranks as ranks_rule

SCHEMA = "amp-checks/watched"


def judged(recorded: Sequence[Recorded], *, sharded: bool = False) -> tuple[Diagnostic, ...]:
    """The findings of a run, of all its ranks, worst first."""
    found: list[Diagnostic] = list(ranks_rule.compare(recorded, sharded=sharded)) if len(recorded) > 1 else []
    seen = set()
    for one in recorded:
        for each in rules.judged(one.records).findings:
            if (each.rule, each.module, each.severity) not in seen:  # all ranks see most of what one sees
                seen.add((each.rule, each.module, each.severity))
                found.append(each)
    worst: dict[tuple[str, str | None], Diagnostic] = {}
    for each in found:
        known = worst.get((each.rule, each.module))
        if known is None or each.severity.rank < known.severity.rank:
            worst[each.rule, each.module] = each
    return in_order(worst.values())


def in_order(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Worst first, then as they came."""
    return tuple(sorted(found, key=lambda one: (one.severity.rank, one.step or 0)))


def verdict(recorded: Sequence[Recorded], found: Sequence[Diagnostic]) -> str:
    """One line."""
    steps = sum(record["kind"] == "step" for record in recorded[0].records)
    of = f"{steps} steps" + (f" on {len(recorded)} ranks" if len(recorded) > 1 else "")
    errors = sum(one.severity is Severity.ERROR for one in found)
    warnings = sum(one.severity is Severity.WARNING for one in found)
    rest = "; the record is incomplete" if any(one.missing for one in recorded) else ""
    if errors:
        first = next(one for one in found if one.severity is Severity.ERROR)
        since = "" if first.step is None else f" from step {first.step}"
        return f"AMP GOES WRONG: {errors} errors, {warnings} warnings in {of}; {first.rule}{since}{rest}"
    if not steps:
        return f"nothing was judged: no optimizer stepped{rest}"
    return f"AMP goes right: no error, {warnings} warnings in {of}{rest}"


def text(recorded: Sequence[Recorded], found: Sequence[Diagnostic]) -> str:
    """For a terminal; the verdict is its last line."""
    lines = []
    for one in found:
        since = f"step {one.step}" if one.step is not None else None
        place = ", ".join(
            part for part in (since, one.where, f"in {one.module}" if one.module else None, one.op) if part
        )
        lines += [
            f"{one.severity.upper():7} {one.rule}  [{place}]",
            f"  {one.message}",
            f"  remedy: {one.remedy}",
        ]
    lines += [f"{name}: {value}" for name, value in figures(recorded[0].records).items()]
    lines += [f"missing in {one.path.name}: {what}" for one in recorded for what in one.missing]
    return "\n".join([*lines, verdict(recorded, found)])


def as_json(recorded: Sequence[Recorded], found: Sequence[Diagnostic]) -> dict[str, Any]:
    """As plain values."""
    return {
        "schema": SCHEMA,
        "version": 1,
        "verdict": verdict(recorded, found),
        "findings": [rules.as_record(one) for one in found],
        "figures": figures(recorded[0].records),
        "missing": {one.path.name: list(one.missing) for one in recorded if one.missing},
    }


def figures(records: Sequence[Record]) -> dict[str, str]:
    """The run in a few figures."""
    steps = [one for one in records if one["kind"] == "step"]
    samples = [one for one in records if one["kind"] == "sample"]
    if not steps:
        return {}
    skipped = sum(not one["taken"] for one in steps)
    found = {
        "steps": f"{len(steps)}, {skipped} of them skipped ({skipped / len(steps):.1%})",
        "time of a step": f"{1e3 * statistics.median(one['seconds'] for one in steps):.1f} ms (median)",
    }
    scales = [one["scale"] for one in steps if one["scale"] is not None]
    if scales:
        found["loss scale"] = f"{scales[0]:g} at first, {min(scales):g} at least, {scales[-1]:g} at the end"
    if samples:
        found["share of product FLOPs in 16 bits"] = f"{low_share(samples[-1]):.0%}"
        least = least_headroom(samples)
        if least is not None:
            bits, module, step = least
            found["least headroom in float16"] = f"{bits:.1f} bits below 65504, in {module} at step {step}"
        found["casts a step"] = f"{samples[-1]['casts']}, {samples[-1]['cast_bytes']} bytes"
        if samples[-1].get("memory"):
            found["memory at its peak"] = f"{samples[-1]['memory'] / 2**20:.0f} MiB"
    if (trouble := records[-1].get("trouble")) is not None:
        found["not recorded"] = f"some of it: {trouble}"
    return found


def low_share(sample: Record) -> float:
    """Share of the FLOPs of products (modules with a weight matrix) whose output is in 16 bits."""
    return float(sum(share for name, share in sample["flops"].items() if name in ("float16", "bfloat16")))


def headroom(row: Record) -> float | None:
    """Bits from the largest activation of a module up to 65504; None where it is not in float16, or is zero."""
    if row.get("dtype") != "float16" or not row["max"]:
        return None
    return math.log2(LARGEST / row["max"]) if math.isfinite(row["max"]) else 0.0


def least_headroom(samples: Sequence[Record]) -> tuple[float, str, int] | None:
    """The least headroom, its module and its step."""
    found = [
        (bits, name, one["step"])
        for one in samples
        for name, row in one["modules"].items()
        if (bits := headroom(row)) is not None
    ]
    return min(found, default=None)
