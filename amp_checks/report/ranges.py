"""The table of ranges for people: lines of text, a plot, and the same from the results of a run.

The plot shows for each op a bar of safe magnitudes forward, and one backward, on a log axis.
"""

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
            written = self.above
        else:
            ends = (("below", self.below), ("above", self.above))
            written = "; ".join(f"{where}: {what}" for where, what in ends if what not in ("", END))
        return f"{written} ({self.why})" if written and self.why else written or "the whole span"


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


_ROW = 0.42
"""Inches for each op."""


def plot(lines: Sequence[Line], *, name: str) -> str:
    """The ranges of one backend as an ``svg`` element.

    Forward is a filled bar, backward an empty one below it. A cross at an end says that the next magnitude gives inf or
    NaN, a triangle that it gives something finite and wrong, a dot that float32 fails there too.

    Args:
        lines: of one backend.
        name: what the ids in the SVG begin with.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from amp_checks.report.plots import BAD, INK, SERIES, STYLE, svg_of

    ops = list(dict.fromkeys(line.op for line in lines))
    low, high = SPANS[lines[0].dtype]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4, _ROW * len(ops) + 1.5), layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            row = ops.index(line.op)
            forward = line.direction == "forward"
            height = row + (0.08 if forward else 0.3)
            if line.low is None or line.high is None:
                written = f"{line.direction}: nowhere safe ({line.above})"
                axes.text(low, height, written, va="center", color=BAD, fontsize=8)
                continue
            axes.barh(
                height,
                line.high - line.low,
                left=line.low,
                height=0.16,
                facecolor=SERIES[0] if forward else "none",
                edgecolor=SERIES[0] if forward else SERIES[1],
                linewidth=1.2,
            )
            for at, what in ((line.low, line.below), (line.high, line.above)):
                if what and what != END:
                    marker, colour = _mark(what)
                    axes.plot([at], [height], linestyle="none", marker=marker, color=colour, markersize=6, zorder=3)
        for row, op in enumerate(ops):
            axes.text(low, row - 0.2, op, va="center", ha="left", color=INK, fontsize=10)
        axes.set_xscale("log")
        decades = math.log10(high / low)
        axes.set_xlim(low / 10 ** (decades / 40), high * 10 ** (decades / 40))
        axes.set_ylim(len(ops) - 0.4, -0.6)
        axes.set_yticks([])
        axes.tick_params(axis="x", labeltop=True, length=0)  # the bottom is far away
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"magnitude of the input, {lines[0].dtype}")
        axes.grid(visible=True, axis="x")
        axes.set_axisbelow(True)
        figure.legend(handles=_legend(), loc="outside upper left", ncols=3, handletextpad=0.4)
        return svg_of(figure, name=name, label=f"Safe magnitudes on {lines[0].backend}, as in the table below")


def drawn(results: Iterable[Result]) -> list[tuple[str, str, list[Line]]]:
    """Backend, drawing and lines, for each backend of which the results hold ranges.

    The drawing is empty for a backend whose id does not end with its dtype: a user's own may be called anything.
    """
    found = by_backend(from_results(results))
    return [
        (backend, plot(lines, name=f"safe-{number}") if lines[0].dtype in SPANS else "", lines)
        for number, (backend, lines) in enumerate(found.items())
    ]


def _mark(what: str) -> tuple[str, str]:
    from amp_checks.report.plots import BAD, INK, MUTED

    if what in NOT_FINITE:
        return "X", BAD
    return ("o", MUTED) if what == "float32 too" else ("v", INK)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from amp_checks.report.plots import SERIES

    marks = (("gives inf", "inf or NaN"), ("inaccurate", "finite, wrong"), ("float32 too", "float32 too"))
    points = [
        Line2D([], [], linestyle="none", marker=_mark(what)[0], color=_mark(what)[1], label=label)
        for what, label in marks
    ]
    return [
        Patch(facecolor=SERIES[0], edgecolor=SERIES[0], label="forward"),
        Patch(facecolor="none", edgecolor=SERIES[1], label="backward"),
        *points,
    ]


def standalone(svg: str) -> str:
    """A drawing with the colours of the HTML page in itself, light and dark, for a file of its own."""
    style = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    colours = re.search(r":root \{.*?\n\}\n@media \(prefers-color-scheme: dark\) \{.*?\n\}\n", style, re.DOTALL)
    rules = (colours[0] if colours else "") + "svg { background: var(--page); width: 42rem; height: auto; }\n"
    opening = svg.index(">") + 1
    return f"{svg[:opening]}<style>\n{rules}</style>{svg[opening:]}"
