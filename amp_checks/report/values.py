"""Results as JSON's own types, and back with a message where malformed. JSON has no infinity and no NaN: such floats,
wherever they are, become the strings "inf", "-inf", "nan".
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from amp_checks.core import Finding, Result, Status, SuiteError

_NAMED = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode(value: Any) -> Any:
    """The value in JSON's own types: floats that JSON lacks as their names, anything else as its text.

    Exact types only: a worker's channel to the controller carries no subclass of str, such as an enumeration's member.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {str(key): encode(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    return str(value)


def decode_float(value: Any) -> float:
    """A float as `encode` wrote it."""
    return _NAMED[value] if isinstance(value, str) else float(value)


def result_to_json(result: Result) -> dict[str, Any]:
    """One result as JSON values, its time included."""
    return {"id": result.id, **encode(dataclasses.asdict(result))}


def result_from_json(entry: dict[str, Any]) -> Result:
    """The result that `result_to_json` wrote.

    Raises:
        SuiteError: a field is missing or has a value it cannot have.
    """
    try:
        findings = tuple(
            Finding(**{**part, **{name: decode_float(part[name]) for name in ("ratio", "threshold")}})
            for part in entry["findings"]
        )
        fields = {field.name: entry[field.name] for field in dataclasses.fields(Result) if field.name in entry}
        result = Result(**{**fields, "status": Status(entry["status"]), "findings": findings})
        texts = (result.check, result.case, result.family, result.backend, result.message, result.detail)
        "".join((*texts, *(text for finding in findings for text in (finding.subject, finding.why))))  # text, no other
        return dataclasses.replace(result, seconds=float(result.seconds), emulated=bool(result.emulated))
    except (KeyError, TypeError, ValueError) as error:
        raise SuiteError(f"malformed result {entry.get('id', '?')!r}: {type(error).__name__}: {error}") from error


def dumps(content: dict[str, Any]) -> str:
    """The document as text; strict JSON."""
    return json.dumps(encode(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
