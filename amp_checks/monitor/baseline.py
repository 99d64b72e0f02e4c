"""A run against good runs of the same program: what it does otherwise, beyond what they differ by among themselves."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence

from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.monitor.float16 import LARGEST
from amp_checks.monitor.journal import Record, Recorded

_BITS = 2.0
"""Headroom by which two good runs may differ: a largest value of one batch in twenty is itself a matter of chance."""
_LOST = 0.3
_SKIPS = 3
_SCALES = 8.0
_SLOWER = 1.3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What of a run is compared.

    Attributes:
        dtypes: of each module's output, those of regular samples.
        gradient_dtypes: of the gradient of each module's output.
        weights: the dtypes of each parameter.
        headroom: bits below 65504 of each module in float16, the least.
        lost: of the gradient of each module's output, the median share below 6e-8.
        casts: at modules with a weight matrix, the most in a step.
        skipped: steps; ``seconds``: of a step, the median; ``scale``: the last, or None.
    """

    dtypes: dict[str, frozenset[str]]
    gradient_dtypes: dict[str, frozenset[str]]
    weights: dict[str, frozenset[str]]
    headroom: dict[str, float]
    lost: dict[str, float]
    casts: int
    skipped: int
    steps: int
    seconds: float
    scale: float | None


def run_of(recorded: Recorded) -> Run:
    """What a record says of a run."""
    steps = [one for one in recorded.records if one["kind"] == "step"]
    samples = [one for one in recorded.records if one["kind"] == "sample" and one["regular"]]
    rows = [(name, row) for one in samples for name, row in one["modules"].items()]
    sizes = [(name, row["max"]) for name, row in rows if row.get("dtype") == "float16" and row["max"] > 0.0]
    lost: dict[str, list[float]] = {}
    for name, row in rows:
        if "gradient_lost" in row:
            lost.setdefault(name, []).append(row["gradient_lost"])
    scales = [one["scale"] for one in steps if one["scale"] is not None]
    return Run(
        dtypes=_seen(rows, "dtype"),
        gradient_dtypes=_seen(rows, "gradient_dtype"),
        weights=_seen([row for one in samples for row in one["weights"].items()], "dtype"),
        headroom={
            module: min(
                math.log2(LARGEST / size) if math.isfinite(size) else 0.0 for name, size in sizes if name == module
            )
            for module in dict(sizes)
        },
        lost={name: statistics.median(shares) for name, shares in lost.items()},
        casts=max((one["casts"] for one in samples), default=0),
        skipped=sum(not one["taken"] for one in steps),
        steps=len(steps),
        seconds=statistics.median(one["seconds"] for one in steps) if steps else 0.0,
        scale=scales[-1] if scales else None,
    )


def compare(good: Sequence[Recorded], new: Recorded) -> tuple[Diagnostic, ...]:
    """What the new run does otherwise than every good one, worst first."""
    found = [*_compared([run_of(one) for one in good], run_of(new))]
    return tuple(sorted(found, key=lambda one: one.severity.rank))


def _compared(good: Sequence[Run], new: Run) -> Iterator[Diagnostic]:
    for what, known, now in (
        ("output", [one.dtypes for one in good], new.dtypes),
        ("gradient", [one.gradient_dtypes for one in good], new.gradient_dtypes),
        ("parameter", [one.weights for one in good], new.weights),
    ):
        changed = [
            (name, usual, dtypes)
            for name, dtypes in now.items()
            if (usual := frozenset().union(*(one.get(name, frozenset()) for one in known))) and not dtypes <= usual
        ]
        if changed:
            name, usual, dtypes = changed[0]
            yield _otherwise(
                f"{what}-dtype",
                Severity.ERROR,
                f"the {what} is in {_names(dtypes)}, and was in {_names(usual)}; {len(changed)} differ so",
                name,
            )
    yield from _sizes(good, new)
    if new.casts > max(one.casts for one in good):
        yield _otherwise("casts", Severity.WARNING, f"{new.casts} casts a step, and at most {good[0].casts} before")
    share = max(one.skipped / max(one.steps, 1) for one in good)
    usual_skips = share * new.steps
    if new.skipped > usual_skips + 3 * math.sqrt(usual_skips) + _SKIPS:
        yield _otherwise(
            "skips", Severity.WARNING, f"{new.skipped} of {new.steps} steps are skipped; usual: {share:.1%}"
        )
    scales = [one.scale for one in good if one.scale is not None]
    if scales and (new.scale is None or new.scale * _SCALES <= min(scales)):
        now_scale = "no loss is scaled" if new.scale is None else f"the loss scale ends at {new.scale:g}"
        yield _otherwise("scale", Severity.ERROR, f"{now_scale}, and ended at {min(scales):g}")
    slowest = max(one.seconds for one in good)
    if new.seconds > _SLOWER * slowest:
        message = f"a step takes {1e3 * new.seconds:.1f} ms, and took {1e3 * slowest:.1f} ms: on the same machine?"
        yield _otherwise("time", Severity.NOTE, message)


def _sizes(good: Sequence[Run], new: Run) -> Iterator[Diagnostic]:
    """Headroom and underflow: of all modules that differ, the one that differs most."""
    worst: tuple[float, str, str] | None = None
    for name, bits in new.headroom.items():
        usual = [one.headroom[name] for one in good if name in one.headroom]
        if usual and bits < min(usual) - _BITS - (max(usual) - min(usual)):
            message = f"headroom is {bits:.1f} bits below 65504, and was {min(usual):.1f}"
            worst = max(worst or (0.0, "", ""), (min(usual) - bits, message, name))
    if worst is not None:
        yield _otherwise("headroom", Severity.WARNING, worst[1], worst[2])
    worst = None
    for name, share in new.lost.items():
        usual = [one.lost[name] for one in good if name in one.lost]
        if usual and share > max(usual) + _LOST + (max(usual) - min(usual)):
            message = f"{share:.0%} of the gradient is below 6e-8, and {max(usual):.0%} was"
            worst = max(worst or (0.0, "", ""), (share - max(usual), message, name))
    if worst is not None:
        yield _otherwise("underflow", Severity.WARNING, worst[1], worst[2])


def _otherwise(what: str, severity: Severity, message: str, module: str | None = None) -> Diagnostic:
    return Diagnostic(
        rule=f"baseline-{what}",
        severity=severity,
        message=message,
        module=module,
        remedy="if it is meant, record a new baseline; if not, look at what changed since the good run",
    )


def _seen(rows: Sequence[tuple[str, Record]], key: str) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for name, row in rows:
        if key in row:
            found.setdefault(name, set()).add(row[key])
    return {name: frozenset(dtypes) for name, dtypes in found.items()}


def _names(dtypes: frozenset[str]) -> str:
    return " and ".join(sorted(dtypes))
