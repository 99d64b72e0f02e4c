"""Documents from files: what a run wrote, what a killed run left, or audits; refused with one message if malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from amp_checks.core import Outcome, SuiteError, UsageError
from amp_checks.report import audits, stream, summary, worths
from amp_checks.report.document import AUDITS, RESULTS, WORTHS, Document, Place
from amp_checks.report.files import check_version
from amp_checks.report.json_format import VERSION
from amp_checks.report.values import encode, result_from_json


def read(path: Path) -> Document:
    """Read a document back, or what a killed run left of one (`amp_checks.report.stream`).

    Raises:
        UsageError: no such file, not JSON, not of a known schema and version, a part of it missing or malformed, or its
            summary does not agree with its results.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = None if stream.is_stream(text) else json.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read as results: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as results: it is no JSON, or cut short: {error}") from error
    return stream.read(path, text) if content is None else from_values(content, name=str(path))


def from_values(content: Any, *, name: str) -> Document:
    """The document that `amp_checks.report.json_format.as_values` wrote.

    Args:
        content: plain values.
        name: of the file, for messages.

    Raises:
        UsageError: as `read`.
    """
    schema, version = (content.get("schema"), content.get("version")) if isinstance(content, dict) else (None, None)
    if schema not in (RESULTS, AUDITS, WORTHS):
        raise UsageError(f"{name} holds no results of schema {RESULTS!r}, {AUDITS!r} or {WORTHS!r}, version {VERSION}")
    check_version(name, schema, version, VERSION)
    try:
        found = _results(content, name) if schema == RESULTS else _alone(content, name, schema)
        audits.arrange(found.audits)
        worths.arrange(found.worths)
    except UsageError:
        raise
    except SuiteError as error:
        raise UsageError(f"{name}: {error}") from error
    return found


def _alone(content: dict[str, Any], name: str, schema: str) -> Document:
    """A document of audits, or of what AMP is worth, and nothing else."""
    key = schema.rpartition("/")[2]
    if not isinstance(content.get(key), list):
        raise UsageError(f"{name} is no whole document of {key}: its {key!r} is missing or of another type")
    return Document(schema=schema, **{key: content[key]})


_NEEDED = {"results": list, "environment": dict, "summary": dict, "complete": bool}
_OPTIONAL = {
    "ended": str,
    "selection": dict,
    "errors": list,
    "seconds": dict,
    "failed_tests": list,
    "tests": dict,
    "curves": list,
    "audits": list,
    "worths": list,
    "tables": list,
    "environments": list,
}
"""Parts of a document with their types."""


def _results(content: dict[str, Any], name: str) -> Document:
    part = {key: kind() for key, kind in _OPTIONAL.items()} | content
    _check_parts(part, name)
    entries, seconds = part["results"], part["seconds"]
    if not all(isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries):
        raise SuiteError("malformed results: each is an object with an id")
    results = [result_from_json({**entry, "seconds": seconds.get(entry["id"], 0.0)}) for entry in entries]
    for entry, result in zip(entries, results, strict=True):
        if entry["id"] != result.id:
            raise UsageError(f"{name} was edited: the result {entry['id']!r} is one of {result.id!r}")
    if len({result.id for result in results}) != len(results):
        raise UsageError(f"{name} was edited: two of its results are of one item")
    summary_read, found = part["summary"], encode(summary.summarise(results))
    if odd := [key for key, value in found.items() if summary_read.get(key) != value]:
        raise UsageError(
            f"{name} was cut or edited: its summary does not agree with its results: {odd[0]} is "
            f"{summary_read.get(odd[0])}, and by the results {found[odd[0]]}"
        )
    try:
        ended = Outcome.OK if part["complete"] else Outcome[part["ended"].upper() or "UNFINISHED"]
        tests = {item: Place(**place) for item, place in part["tests"].items()}
    except (KeyError, TypeError) as error:
        raise UsageError(f"{name} is no whole results document: {type(error).__name__}: {error}") from error
    same = (
        "environment",
        "selection",
        "errors",
        "failed_tests",
        "curves",
        "audits",
        "worths",
        "tables",
        "environments",
    )
    return Document(results=results, ended=ended, tests=tests, **{key: part[key] for key in same})


def _check_parts(part: dict[str, Any], name: str) -> None:
    for key, kind in {**_NEEDED, **_OPTIONAL}.items():
        if not isinstance(part.get(key), kind):
            raise UsageError(f"{name} is no whole results document: its {key!r} is missing or of another type")
    lists = [
        part["errors"],
        part["failed_tests"],
        *(one for one in part["selection"].values() if isinstance(one, list)),
    ]
    if odd := [one for texts in lists for one in texts if not isinstance(one, str)]:
        raise UsageError(f"{name} is no whole results document: {odd[0]!r} is no text, and should be")
    if missing := [key for key in ("torch", "devices", "driver", "backends") if key not in part["environment"]]:
        raise UsageError(f"{name} is no whole results document: its environment lacks {', '.join(missing)}")
