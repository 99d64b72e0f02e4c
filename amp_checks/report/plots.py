"""Plots as SVG text for an HTML page: no file, no network, colours from the page's own style.

Matplotlib knows no CSS, so it draws in placeholder colours, which become ``var(--...)`` here: one drawing then serves
light and dark. Marks differ in shape too: colour alone carries no meaning.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from amp_checks.report.curves import Curve
from amp_checks.report.worths import WorthPart

_VARIABLES = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--rule)",
    "#040404": "var(--bad)",
    "#0a0001": "var(--series-1)",
    "#0a0002": "var(--series-2)",
    "#0a0003": "var(--series-3)",
    "#0a0004": "var(--series-4)",
}
INK, MUTED, RULE, BAD, *SERIES = _VARIABLES
_DASHES = ("-", "--", ":", "-.")

STYLE: Any = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: it can be read out, searched and styled
    "svg.hashsalt": "amp_checks",
    "font.family": "sans-serif",
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": RULE,
    "legend.frameon": False,
    "legend.fontsize": 11,
}

LEAST, MOST = 1e-4, 1e2
"""Ends of the axis of shares; what lies beyond is drawn at the end."""

_MARKERS = {"CUDA": "s", "CPU": "o", "emulated": "^", "other": "D"}


def svg_of(figure: Figure, *, name: str, label: str) -> str:
    """The figure as an ``svg`` element whose ids begin with ``name``, so that a page may hold several."""
    text = io.StringIO()
    with warnings.catch_warnings():
        # Text stays text, so it does not matter here that the font it is measured with lacks a character.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # A style element within an SVG would hold for the whole page; and the metadata says nothing of use.
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    # A quotation mark in a font's list of names would end the style attribute in a reader that is not strict.
    svg = svg.replace("'sans-serif'", "sans-serif")
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg ", f'<svg stroke-linejoin="round" role="img" aria-label="{escaped}" ', 1)


def ratios(shares: Mapping[str, Mapping[str, Sequence[float]]], *, name: str) -> str:
    """Measured ratios as shares of their thresholds, on a log axis: a row for each check, apart by kind of backend.

    Args:
        shares: check -> kind of backend -> shares, infinity included.
        name: what the ids in the SVG begin with.
    """
    rows = list(shares)
    kinds = [kind for kind in _MARKERS if any(kind in by_kind for by_kind in shares.values())]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 0.66 * len(rows) + 1.4), layout="constrained")
        axes = figure.add_subplot()
        for row, check in enumerate(rows):
            axes.text(LEAST, row - 0.36, check, va="center", ha="left", color=INK)
            for place, kind in enumerate(kinds):
                drawn = _thinned(shares[check].get(kind, ()))
                height = row + 0.02 + 0.17 * place
                for beyond, marker, colour in ((False, _MARKERS[kind], SERIES[place]), (True, "X", BAD)):
                    some = [share for share in drawn if (share >= 1.0) is beyond]
                    axes.plot(
                        some,
                        [height] * len(some),
                        linestyle="none",
                        marker=marker,
                        markersize=7 if beyond else 4,
                        markerfacecolor=colour if beyond else "none",
                        markeredgecolor=colour,
                    )
        axes.axvline(1.0, color=BAD, linewidth=1.2, linestyle="--")
        axes.set_xscale("log")
        axes.set_xlim(LEAST * 0.7, MOST * 1.6)
        axes.set_ylim(len(rows) - 0.3, -0.7)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("ratio as a share of its threshold (dashed: 1)")
        axes.grid(visible=True, axis="x")
        axes.set_axisbelow(True)
        handles = [
            Line2D([], [], linestyle="none", marker=_MARKERS[kind], color=SERIES[place], fillstyle="none", label=kind)
            for place, kind in enumerate(kinds)
        ]
        handles.append(Line2D([], [], linestyle="none", marker="X", color=BAD, label="beyond it"))
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handletextpad=0.1)
        return svg_of(figure, name=name, label="Measured ratios as shares of their thresholds, as in the table below")


def _thinned(shares: Sequence[float]) -> list[float]:
    """The shares within the axis, one for each place that can be distinguished."""
    places = {
        round(math.log10(min(max(share, LEAST), MOST)) * 60): min(max(share, LEAST), MOST) for share in sorted(shares)
    }
    return list(places.values())


def curve(one: Curve, *, name: str) -> str:
    """A curve with its band and marks."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        if one.band is not None:
            label, low, high = one.band
            axes.fill_between(range(len(low)), low, high, color=MUTED, alpha=0.3, linewidth=0, label=label)
        for number, (label, values) in enumerate(one.lines):
            drawn = [value if math.isfinite(value) else math.nan for value in values]
            colour, dashes = SERIES[number % len(SERIES)], _DASHES[number % len(_DASHES)]
            # A line of one point, or of points between gaps, shows by its markers alone.
            axes.plot(drawn, color=colour, linestyle=dashes, marker="." if len(drawn) < 40 else None, label=label)
        if one.marks is not None:
            label, at = one.marks
            for number, step in enumerate(at):
                axes.axvline(step, color=BAD, linewidth=1, linestyle=":", label=label if number == 0 else None)
        if one.log:
            axes.set_yscale("log")
        axes.set_xlabel(one.x)
        axes.set_ylabel(one.y)
        axes.grid(visible=True)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper left", ncols=2)
        return svg_of(figure, name=name, label=f"{one.title}: {'; '.join(one.describe())}")


def roofline(one: WorthPart, *, name: str) -> str:
    """The products of an iteration below the roofs of a device; a mark's area is its share of the time."""
    if not one.points:
        return ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        low = min(0.5, *(point.intensity for point in one.points))
        high = max(2000.0, *(point.intensity for point in one.points))
        steps = [low * (high / low) ** (step / 60) for step in range(61)]
        for number, (dtype, peak) in enumerate(one.roofs.items()):
            colour = SERIES[number % len(SERIES)]
            roof = [min(peak, step * one.bandwidth) for step in steps]
            axes.plot(steps, roof, color=colour, linestyle=_DASHES[number % len(_DASHES)], label=f"{dtype} roof")
            mine = [point for point in one.points if point.dtype == dtype]
            axes.scatter(
                [point.intensity for point in mine],
                [point.rate for point in mine],
                s=[12 + 200 * point.share for point in mine],
                marker="os^D"[number % 4],
                facecolors="none",
                edgecolors=colour,
                label=f"products in {dtype}",
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("FLOPs for each byte")
        axes.set_ylabel("FLOP/s at most")
        axes.grid(visible=True)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper left", ncols=2)
        return svg_of(figure, name=name, label=f"Roofline of {one.title} on {one.device}")
