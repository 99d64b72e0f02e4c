"""The table of ranges for people: lines of text, a plot, and the same from the results of a run."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from amp_checks.core import Finding, Result

CHECK = "check_safe_range"
"""The check whose findings hold the ranges."""

SPANS = {"float16": (2.0**-24, 65504.0), "bfloat16": (2.0**-126, 3.3895e38)}
"""Low dtype -> the ends of the magnitudes that are tried (`amp_checks.families.ranges.probe.SPANS`)."""

END = "end of the span"
NOT_FINITE = ("gives inf", "gives NaN")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The safe magnitudes of an op in one direction on one backend.

    Attributes:
        op, backend, direction, policy: names.
        low, high: the smallest and the largest; None where none is safe.
        below, above: what lies just outside; `END` where nothing does; empty where nothing was claimed of it.
        why: the stated reason of the limits; empty where nothing is stated.
    """

    op: str
    backend: str
    direction: str
    policy: str
    low: float | None
    high: float | None
    below: str
    above: str
    why: str

    @property
    def dtype(self) -> str:
        return self.backend.rpartition("-")[2]

    @property
    def ends(self) -> tuple[str, str]:
        """The smallest and the largest magnitude in words; ``nowhere`` and nothing where none is safe."""
        if self.low is None or self.high is None:
            return "nowhere", ""
        return magnitude(self.low), magnitude(self.high)

    @property
    def safe(self) -> str:
        """In words: ``from 6.0e-08 to 11.1``."""
        low, high = self.ends
        return f"from {low} to {high}" if high else low

    @property
    def outside(self) -> str:
        """In words: ``above: gives inf (e^x passes 65504 above ln 65504 = 11.09)``."""
        if self.low is None:
            told = self.above
        else:
            ends = (("below", self.below), ("above", self.above))
            told = "; ".join(f"{where}: {what}" for where, what in ends if what not in ("", END))
        return f"{told} ({self.why})" if told and self.why else told or "the whole span"


def magnitude(value: float) -> str:
    """Three digits: ``6.0e-08``, ``0.0316``, ``15.9``, ``65504``."""
    if 1e-3 <= value < 1e5:
        return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{value:.1e}"


def described(lines: Sequence[Line]) -> list[str]:
    """The table as text, a line for each op, direction and backend."""
    if not lines:
        return []
    columns = [(line.op, line.backend, line.direction, line.policy, line.safe) for line in lines]
    widths = [max(len(row[place]) for row in columns) for place in range(5)]
    return [
        "  ".join([*(part.ljust(width) for part, width in zip(row, widths, strict=True)), line.outside]).rstrip()
        for row, line in zip(columns, lines, strict=True)
    ]


def from_results(results: Iterable[Result]) -> list[Line]:
    """The lines that the results of a run hold, in their order."""
    found: list[Line] = []
    for result in results:
        if result.check == CHECK and result.findings:
            found += _of(result)
    return found


def _of(result: Result) -> list[Line]:
    by_direction: dict[str, dict[str, Finding]] = {}
    for finding in result.findings:
        direction, _, what = finding.subject.partition(": ")
        by_direction.setdefault(direction, {})[what.partition(" ")[0]] = finding
    lines = []
    for direction, ends in by_direction.items():
        if "smallest" not in ends or "largest" not in ends:
            continue  # the op raised
        policy, _, why = ends["smallest"].why.partition("; ")
        below, above = (str(ends[name].actual) if name in ends else "" for name in ("below", "above"))
        lines.append(
            Line(
                op=result.case.removeprefix("range-"),
                backend=result.backend,
                direction=direction,
                policy=policy,
                low=_number(ends["smallest"].actual),
                high=_number(ends["largest"].actual),
                below=below,
                above=above,
                why="" if why.startswith("nothing is stated") else why,
            )
        )
    return lines


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def by_backend(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Backend -> its lines."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.backend, []).append(line)
    return found


def standalone(svg: str) -> str:
    """A drawing with the colours of the HTML page in itself, light and dark, for a file of its own."""
    style = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    colours = re.search(r":root \{.*?\n\}\n@media \(prefers-color-scheme: dark\) \{.*?\n\}\n", style, re.DOTALL)
    rules = (colours[0] if colours else "") + "svg { background: var(--page); width: 42rem; height: auto; }\n"
    opening = svg.index(">") + 1
    return f"{svg[:opening]}<style>\n{rules}</style>{svg[opening:]}"
