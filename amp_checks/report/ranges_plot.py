"""The plot of ranges: for each op a bar of safe magnitudes forward, and one backward, on a log axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from amp_checks.core import Result
from amp_checks.report.plots import BAD, INK, MUTED, SERIES, STYLE, svg_of
from amp_checks.report.ranges import END, NOT_FINITE, SPANS, Line, by_backend, from_results

_ROW = 0.42
"""Inches for each op."""


def ranges(lines: Sequence[Line], *, name: str) -> str:
    """The ranges of one backend as an ``svg`` element.

    Forward is a filled bar, backward an empty one below it. A cross at an end says that the next magnitude gives inf or
    NaN, a triangle that it gives something finite and wrong, a dot that float32 fails there too.

    Args:
        lines: of one backend.
        name: what the ids in the SVG begin with.
    """
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
                told = f"{line.direction}: nowhere safe ({line.above})"
                axes.text(low, height, told, va="center", color=BAD, fontsize=8)
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
        (backend, ranges(lines, name=f"safe-{number}") if lines[0].dtype in SPANS else "", lines)
        for number, (backend, lines) in enumerate(found.items())
    ]


def _mark(what: str) -> tuple[str, str]:
    if what in NOT_FINITE:
        return "X", BAD
    return ("o", MUTED) if what == "float32 too" else ("v", INK)


def _legend() -> list[Patch | Line2D]:
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
