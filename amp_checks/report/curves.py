"""Curves that a results document may carry: losses with the band of FP32, loss scale and skipped steps over time.

``curves`` is optional in a document. Each entry is::

    {"item": id of the item it belongs to, or null,
     "title": "...", "x": "step", "y": "training loss", "log": false,
     "lines": [{"name": "AMP, seed 0", "values": [...]}, ...],     one value for each step
     "band": {"name": "FP32, 5 seeds", "low": [...], "high": [...]} or null,
     "marks": {"name": "skipped step", "at": [steps]} or null}

Values that are not finite stand as in the rest of the document ("inf", "-inf", "nan") and leave a gap in the line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from amp_checks.core import SuiteError
from amp_checks.report.values import decode_float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One plot; fields as in the module's text. ``band`` is its name, low values, high values."""

    items: tuple[str, ...]
    title: str
    x: str
    y: str
    log: bool
    lines: tuple[tuple[str, tuple[float, ...]], ...]
    band: tuple[str, tuple[float, ...], tuple[float, ...]] | None
    marks: tuple[str, tuple[int, ...]] | None

    def describe(self) -> list[str]:
        """The plot in words, one line for each line of it: what a reader who cannot see it needs."""
        written = []
        for name, values in self.lines:
            finite = [value for value in values if math.isfinite(value)]
            if not finite:
                written.append(f"{name}: {len(values)} values, none finite")
                continue
            lost = f", {len(values) - len(finite)} not finite" if len(finite) < len(values) else ""
            written.append(
                f"{name}: from {finite[0]:.6g} to {finite[-1]:.6g} over {len(values)} values, "
                f"lowest {min(finite):.6g}, highest {max(finite):.6g}{lost}"
            )
        if self.band is not None:
            name, low, high = self.band
            ends = (f"{low[place]:.6g} to {high[place]:.6g}" for place in (0, -1))
            written.append(f"{name}: {' at first, '.join(ends)} at last")
        if self.marks is not None:
            name, at = self.marks
            written.append(f"{name}: {', '.join(map(str, at)) or 'none'}")
        return written


def together(drawn: Iterable[Curve]) -> list[Curve]:
    """Curves that differ in their lines alone, as one: the same task on several backends."""
    found: dict[tuple[object, ...], Curve] = {}
    for curve in drawn:
        key = (curve.title, curve.x, curve.y, curve.log, curve.band, curve.marks)
        if (other := found.get(key)) is not None:
            lines, items = (*other.lines, *curve.lines), (*other.items, *curve.items)
            found[key] = dataclasses.replace(other, lines=lines, items=items)
        else:
            found[key] = curve
    return list(found.values())


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(decode_float(value) for value in values)


def read(entry: Mapping[str, Any]) -> Curve:
    """One entry of a document's ``curves``.

    Raises:
        SuiteError: a field is missing, or a value is no number.
    """
    try:
        band, marks = entry.get("band"), entry.get("marks")
        curve = Curve(
            items=() if entry.get("item") is None else (str(entry["item"]),),
            title=str(entry["title"]),
            x=str(entry["x"]),
            y=str(entry["y"]),
            log=bool(entry.get("log", False)),
            lines=tuple((str(line["name"]), _floats(line["values"])) for line in entry["lines"]),
            band=None if band is None else (str(band["name"]), _floats(band["low"]), _floats(band["high"])),
            marks=None if marks is None else (str(marks["name"]), tuple(int(step) for step in marks["at"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SuiteError(f"malformed curve: {type(error).__name__}: {error}") from error
    if not curve.lines or not all(values for _, values in curve.lines):
        raise SuiteError(f"malformed curve {curve.title!r}: it holds no values")
    if curve.band is not None and not len(curve.band[1]) == len(curve.band[2]) > 0:
        raise SuiteError(f"malformed curve {curve.title!r}: its band needs as many low values as high ones, and some")
    return curve
