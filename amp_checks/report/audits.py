"""Audits of users' training steps, as the HTML page shows them: a verdict, what was found, and a table by module."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from amp_checks.core import SuiteError
from amp_checks.report.values import decode_float

SIGNS = {"error": "✗", "warning": "!", "note": "i"}
"""Each severity by a sign, so that colour alone says nothing."""

SIZES = (
    ("activations", "activations"),
    ("backward", "backward"),
    ("scaled", "gradients under the loss scale"),
    ("gradients", "gradients without it"),
)
"""Groups of columns of the table by module: the name in the document, and in words."""

TIGHT = 2.0
"""Bits of headroom below which a cell is marked: a factor of four."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Magnitudes of one module, as two cells: bits up to overflow and down to zero, and what is lost.

    Attributes:
        up, down: bits, in words.
        lost: shares that are zero, subnormal, saturated, in words.
        tight: whether a value overflowed, or headroom is below `TIGHT`.
    """

    up: str
    down: str
    lost: str
    tight: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One audit, arranged.

    Attributes:
        verdict: in words, counts first.
        state: ``wrong``, ``right`` or, with warnings alone, ``none``.
        findings: as in the document, worst first, what follows from another below it.
        rows: of the table by module: the module as in the document, and a `Size` or None for each of `SIZES`.
    """

    title: str
    emulated: bool
    verdict: str
    state: str
    findings: Sequence[dict[str, Any]]
    summary: Sequence[tuple[str, str]]
    rows: Sequence[tuple[dict[str, Any], Sequence[Size | None]]]


def arrange(audits: Sequence[dict[str, Any]]) -> list[Audit]:
    """The audits of a document.

    Raises:
        SuiteError: one is malformed.
    """
    try:
        return [_arranged(audit) for audit in audits]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SuiteError(f"malformed audit: {type(error).__name__}: {error}") from error


def _arranged(audit: dict[str, Any]) -> Audit:
    own = [one for one in audit["diagnostics"] if one.get("follows_from") is None]
    open_ones = [one for one in own if one["ignored"] is None]
    counts = {name: sum(one["severity"] == name for one in open_ones) for name in SIGNS}
    counted = ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for name, number in counts.items())
    return Audit(
        title=f"{audit['case']} under {audit['backend']}",
        emulated=audit["emulated"],
        verdict=counted,
        state="wrong" if counts["error"] else "none" if counts["warning"] else "right",
        findings=[{"follows_from": None, **one} for one in audit["diagnostics"]],  # older documents lack it
        summary=list(audit["summary"].items()),
        rows=[(row, [_size(row[name]) for name, _ in SIZES]) for row in audit.get("modules", ())],
    )


def _size(found: dict[str, Any] | None) -> Size | None:
    if found is None:
        return None
    up, down = decode_float(found["bits_to_overflow"]), decode_float(found["bits_to_zero"])
    shares = (("zero", "zeros"), ("subnormal", "subnormal"), ("saturated", "saturated"))
    lost = [f"{found[key] / found['count']:.1%} {name}" for name, key in shares if found[key]]
    return Size(
        up=f"{up:.1f}",
        down=f"{down:.1f}",
        lost=", ".join(lost) or "none",
        tight=up < TIGHT or bool(found["saturated"]),
    )
