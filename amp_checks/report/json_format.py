"""Results as JSON: written whole or not at all, and read back with a message where malformed.

The document (``schema`` names it, ``version`` its layout)::

    {"schema": "amp_checks/results", "version": 1,
     "complete": true,                  false where the run was interrupted or a worker was lost
     "environment": {...},              as `amp-checks env --json -`
     "selection": {"backends": [...], "families": [...], "full": false, "require_cuda": false},
     "errors": ["..."],                 conditions of the run as a whole that were not met (the gate's own)
     "summary": {...},                  as `amp_checks.report.summary.summarise`
     "results": [{"id", "check", "case", "family", "backend", "emulated", "numerics", "status", "message", "detail",
                  "findings": [{"subject", "actual", "expected", "ratio", "threshold", "why"}, ...]}, ...],
     "seconds": {id: wall seconds},
     "tests": {id: {...}},              optional, of users' tests: as `amp_checks.report.rerun`
     "curves": [...],                   optional, for plots: as `amp_checks.report.curves`
     "audits": [...]}                   optional, of users' training steps: as `amp_checks.audit.report.as_json`

Results are sorted by id and hold nothing that differs between two runs of the same code on the same machine; times
stand apart. JSON has no infinity and no NaN: such floats, wherever they stand, are the strings "inf", "-inf", "nan".

What ``amp-checks audit --json`` writes is of the schema ``amp_checks/audits``: the same ``audits``, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_checks.core import Finding, Result, Status, SuiteError, UsageError
from amp_checks.report import summary

SCHEMA = "amp_checks/results"
AUDITS = "amp_checks/audits"
VERSION = 1

ODD = "backslashreplace"
"""What becomes of half a surrogate pair, as a file's name may hold: an escape that JSON knows."""

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


def document(
    results: Iterable[Result],
    *,
    environment: dict[str, Any],
    selection: dict[str, Any],
    complete: bool,
    errors: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole document, sorted by id, with its summary."""
    ordered = sorted(results, key=lambda result: result.id)
    entries = [result_to_json(result) for result in ordered]
    seconds = {entry["id"]: round(entry.pop("seconds"), 4) for entry in entries}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "complete": complete,
        "environment": environment,
        "selection": selection,
        "errors": list(errors),
        "summary": summary.summarise(ordered),
        "results": entries,
        "seconds": seconds,
    }


def audits_document(audits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ``amp-checks audit`` found, as a document of its own schema."""
    return {"schema": AUDITS, "version": VERSION, "audits": list(audits)}


def render(content: dict[str, Any]) -> str:
    """The JSON format itself, as `amp_checks.report.FORMATS` calls it."""
    return dumps(content)


def results_of(content: dict[str, Any]) -> list[Result]:
    """The results in a document, each with its time.

    Raises:
        SuiteError: a result is malformed, or the document holds audits alone.
    """
    if "results" not in content:
        raise SuiteError(f"the document holds no results: it is of schema {content.get('schema')!r}")
    seconds = content.get("seconds", {})
    if not isinstance(seconds, dict) or not all(_is_named(entry) for entry in content["results"]):
        raise SuiteError("malformed results: each is an object with an id, and the seconds are an object")
    return [result_from_json({**entry, "seconds": seconds.get(entry.get("id"), 0.0)}) for entry in content["results"]]


def _is_named(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), str)


def merge(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several runs (shards, devices) as one document, and audits with it; audits alone stay audits.

    Complete only if every part is; selected is what any part selects. The environment is the first part's; where
    another part's differs, its differing values stand in ``environments``, part by part.

    Raises:
        UsageError: two parts hold different verdicts on the same item: they are no parts of one run; compare them
            instead.
    """
    if len(contents) == 1:
        return contents[0]
    audits = [audit for content in contents for audit in content.get("audits", ())]
    contents = [content for content in contents if content["schema"] == SCHEMA]
    if not contents:
        return audits_document(audits)
    whole = _merged(contents) if len(contents) > 1 else dict(contents[0])
    if not audits:
        return whole
    return {**whole, "audits": audits, "errors": [*whole.get("errors", []), *_found_by(audits)]}


def _found_by(audits: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What keeps a report with audits from being right: formats that do not show audits say it too."""
    for audit in audits:
        open_ones = [one for one in audit.get("diagnostics", ()) if one["ignored"] is None]
        if count := sum(one["severity"] == "error" for one in open_ones):
            yield f"the audit of {audit.get('case')} under {audit.get('backend')} found {count} errors"


def gate(content: dict[str, Any]) -> tuple[int, str]:
    """The exit status of a run with these results and audits, and its verdict; an audit with errors is wrong AMP."""
    found = list(_found_by(content.get("audits", ())))
    if "results" not in content:
        return (1, found[0]) if found else (0, "no errors") if content["audits"] else (4, "NO VERDICT: nothing ran")
    results = results_of(content)
    state: dict[str, Any] = {"complete": content["complete"], "errors": content.get("errors", ())}
    status, verdict = summary.exit_status(results, **state), summary.verdict(results, **state)
    return (1, found[0]) if found and status != 1 else (status, verdict)


def _merged(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Result] = {}
    for content in contents:
        for result in results_of(content):
            other = merged.setdefault(result.id, result)
            if dataclasses.replace(other, seconds=result.seconds) != result:
                raise UsageError(
                    f"two of the files hold different results for {result.id}: they are no parts of one run; "
                    "amp-checks diff compares two runs"
                )
    results = list(merged.values())
    first = contents[0]["environment"]
    whole = document(
        results,
        environment=first,
        selection=_selected([content.get("selection", {}) for content in contents]),
        complete=all(content["complete"] for content in contents),
        errors=list(dict.fromkeys(error for content in contents for error in content.get("errors", ()))),
    )
    if tests := {item: test for content in contents for item, test in content.get("tests", {}).items()}:
        whole["tests"] = tests
    curves: list[Any] = []
    for curve in (curve for content in contents for curve in content.get("curves", ())):
        curves += [curve] if curve not in curves else []
    if curves:
        whole["curves"] = curves
    whole["environments"] = [
        {name: value for name, value in content["environment"].items() if first.get(name) != value}
        for content in contents
    ]
    return whole


def _selected(selections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several runs selected together: lists joined, an empty one (everything) stays so; else what any part has."""
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for selection in selections for name in selection):
        values = [selection.get(name) for selection in selections]
        if isinstance(values[0], list):
            parts = [value for value in values if isinstance(value, list)]
            joined[name] = list(dict.fromkeys(one for part in parts for one in part)) if all(values) else []
        else:
            joined[name] = next((value for value in values if value), values[0])
    return joined


def dumps(content: dict[str, Any]) -> str:
    """The document as text; strict JSON."""
    return json.dumps(encode(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write(path: Path, content: dict[str, Any]) -> None:
    """Write the document whole, or leave what was there.

    Raises:
        SuiteError: it cannot be written (no folder, no space, no permission).
    """
    write_text(path, dumps(content))


def write_text(path: Path, text: str) -> None:
    """As `write`, for the text of any format."""
    temporary = _beside(path)
    try:
        if path.exists() and not path.is_file():
            path.write_text(
                text, encoding="utf-8", errors=ODD
            )  # a device or a pipe, /dev/stdout say, is written to, not replaced
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", errors=ODD)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SuiteError(_cannot_write(path, error)) from error


def check_target(path: Path) -> None:
    """Try, before anything runs, whether `write` will be able to write there; its folder is made.

    Raises:
        UsageError: it will not.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return  # opening a pipe would wait for its reader
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise UsageError(_cannot_write(path, error)) from error


def _beside(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    # Not tempfile: its files are for their owner alone, and a report is for whoever may read the folder.
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _cannot_write(path: Path, error: OSError) -> str:
    reason: object = error.strerror or error
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = f"{next(parent for parent in path.parents if parent.exists())} is no folder"
    return f"the report {path} cannot be written: {reason}"


def read(path: Path) -> dict[str, Any]:
    """Read a document back, or what a killed run left of one (`amp_checks.report.stream`).

    Raises:
        UsageError: no such file, not JSON, not of this schema and version, a part of it missing or malformed, or its
            summary does not agree with its results.
    """
    from amp_checks.report import audits, stream

    try:
        text = path.read_text(encoding="utf-8-sig")
        content: dict[str, Any] = {} if stream.is_stream(text) else json.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read as results: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as results: it is no JSON, or cut short: {error}") from error
    try:
        if stream.is_stream(text):
            content = stream.read(path, text)
        _check_schema(path, content)
        if content["schema"] == SCHEMA:
            _check_parts(path, content)
        audits.arrange(content.get("audits", ()))
    except UsageError:
        raise
    except SuiteError as error:
        raise UsageError(f"{path}: {error}") from error
    return content


def _check_schema(path: Path, content: Any) -> None:
    schema, version = (content.get("schema"), content.get("version")) if isinstance(content, dict) else (None, None)
    if schema not in (SCHEMA, AUDITS):
        raise UsageError(f"{path} holds no results of schema {SCHEMA!r} or {AUDITS!r}, version {VERSION}")
    if version != VERSION:
        raise UsageError(other_version(path, schema, version, VERSION))
    if schema == AUDITS and not isinstance(content.get("audits"), list):
        raise UsageError(f"{path} is no whole document of audits: its 'audits' is missing or of another type")


def other_version(path: Path, schema: str, version: object, known: int) -> str:
    """What to say of a file whose layout is not the one that this amp_checks knows."""
    newer = isinstance(version, int) and version > known
    remedy = "install the amp_checks that wrote it, or a newer one" if newer else "write it again"
    return f"{path} is of version {version!r} of {schema!r}, and this amp_checks reads version {known}: {remedy}"


_PARTS = (
    *(("results", list), ("environment", dict), ("summary", dict), ("complete", bool)),
    *(("selection", dict), ("errors", list), ("seconds", dict), ("tests", dict), ("curves", list), ("audits", list)),
)
"""Parts of a document with their types; those from ``selection`` on may be left out."""


def _check_parts(path: Path, content: dict[str, Any]) -> None:
    for number, (name, kind) in enumerate(_PARTS):
        if not (isinstance(content.get(name), kind) or (number >= 4 and name not in content)):
            raise UsageError(f"{path} is no whole results document: its {name!r} is missing or of another type")
    lists = [
        content.get("errors", []),
        *(part for part in content.get("selection", {}).values() if isinstance(part, list)),
    ]
    if odd := [one for part in lists for one in part if not isinstance(one, str)]:
        raise UsageError(f"{path} is no whole results document: {odd[0]!r} stands where a text should")
    environment = content["environment"]
    if lacking := [name for name in ("torch", "devices", "driver", "backends") if name not in environment]:
        raise UsageError(f"{path} is no whole results document: its environment lacks {', '.join(lacking)}")
    results = results_of(content)
    for entry, result in zip(content["results"], results, strict=True):
        if entry.get("id") != result.id:
            raise UsageError(f"{path} was edited: the result {entry.get('id')!r} is one of {result.id!r}")
    if len({result.id for result in results}) != len(results):
        raise UsageError(f"{path} was edited: two of its results are of one item")
    found = encode(summary.summarise(results))
    if odd := [name for name, value in found.items() if content["summary"].get(name) != value]:
        one = odd[0]
        raise UsageError(
            f"{path} was cut or edited: its summary does not agree with its results: {one} is "
            f"{content['summary'].get(one)}, and by the results {found[one]}"
        )
