"""What AMP is worth for programs, as the HTML page shows it: facts, reasons, a roofline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from amp_checks.core import SuiteError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An op in the roofline: FLOPs for each byte, FLOP/s that it reaches at most, dtype, share of the time."""

    op: str
    intensity: float
    rate: float
    dtype: str
    share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorthPart:
    """One program under one backend, arranged.

    Attributes:
        facts: names and words.
        reasons: as in the document.
        points: the products of the AMP iteration.
        roofs: dtype -> FLOP/s at most; ``bandwidth`` in bytes/s.
        ops: rows of the table: op, calls, FLOPs, bytes, seconds on the device.
    """

    title: str
    emulated: bool
    device: str
    source: str
    gain: float
    facts: Sequence[tuple[str, str]]
    reasons: Sequence[dict[str, Any]]
    points: Sequence[Point]
    roofs: dict[str, float]
    bandwidth: float
    ops: Sequence[tuple[str, int, int, int, float]]


def arrange(found: Sequence[dict[str, Any]]) -> list[WorthPart]:
    """Those of a document.

    Raises:
        SuiteError: one is malformed.
    """
    try:
        return [_arranged(one) for one in found]
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise SuiteError(f"malformed count of what AMP is worth: {type(error).__name__}: {error}") from error


def _arranged(one: dict[str, Any]) -> WorthPart:
    amp, fp32 = one["amp"], one["fp32"]
    whole = amp["seconds_on_device"] or 1.0
    rows: dict[str, tuple[str, int, int, int, float]] = {}
    for op in amp["ops"]:
        _, calls, flops, size, seconds = rows.get(op["op"], ("", 0, 0, 0, 0.0))
        times = op["calls"]
        rows[op["op"]] = (
            op["op"],
            calls + times,
            flops + op["flops"] * times,
            size + op["bytes"] * times,
            seconds + op["seconds"] * times,
        )
    return WorthPart(
        title=f"{one['case']} under {one['backend']}",
        emulated=one["emulated"],
        device=one["device"]["name"],
        source=one["device"]["source"],
        gain=float(one["gain"]),
        facts=[
            ("FLOPs of products", f"{amp['flops']:,}, {amp['low_flops']:,} of them in 16 bits"),
            ("bytes read and written", f"{amp['bytes']:,} under AMP, {fp32['bytes']:,} in FP32"),
            ("casts", f"{amp['casts']}, {amp['cast_bytes']:,} bytes, {amp['program_casts']} written in the program"),
            ("kept for backward", f"{_saved(amp)} under AMP, {_saved(fp32)} in FP32: {one['saved_share']:.2f}"),
            ("copies of weights", f"{amp['weight_copies']:,} bytes"),
            (
                "what does not shrink",
                f"weights {amp['parameters']:,}, optimizer state {amp['optimizer_state']:,} bytes",
            ),
            *_timing(one["timing"]),
        ],
        reasons=[{"where": None, "module": None, **reason} for reason in one["reasons"]],
        points=[
            Point(
                op=op["op"],
                intensity=op["intensity"],
                rate=op["flops"] / op["seconds"],
                dtype=op["dtype"],
                share=op["seconds"] * op["calls"] / whole,
            )
            for op in amp["ops"]
            if op["flops"]
        ],
        roofs=dict(one["device"]["peak"]),
        bandwidth=float(one["device"]["bandwidth"]),
        ops=sorted(rows.values(), key=lambda row: -row[4]),
    )


def _saved(count: dict[str, Any]) -> str:
    return ", ".join(f"{size:,} {name}" for name, size in sorted(count["saved"].items())) or "nothing"


def _timing(timing: dict[str, Any] | None) -> list[tuple[str, str]]:
    if timing is None:
        return [("timed", "no")]
    head = f"on {timing['machine']}, torch {timing['torch']}, {timing['rounds']} rounds; baseline {timing['baseline']}"
    return [("timed", head)] + [
        (f"AMP {one['dtype']}", f"{one['verdict']}: {one['speedup']:.2f}x ({one['low']:.2f} to {one['high']:.2f})")
        for one in timing["speeds"]
    ]
