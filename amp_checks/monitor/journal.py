"""The record of a run: JSON Lines, appended to line by line, readable up to the last whole line whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from amp_checks.core import UsageError
from amp_checks.report import files, values

SCHEMA = "amp-checks/watch"
VERSION = 1

Record = dict[str, Any]
"""One line. ``kind`` says which: start, step, sample, nonfinite, finding, end."""


class Journal:
    """Writes records, each in one call of the system: what was written is the system's, and outlives the process.

    Where the file cannot be written to any more (a full disk), the part of a line that was written is cut off,
    recording ends with one message, and the training goes on.

    Attributes:
        failed: why recording ended early, or None.
    """

    def __init__(self, path: Path) -> None:
        files.check_target(path)
        self.path = path
        self.failed: str | None = None
        self._size = 0
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)

    def write(self, record: Record) -> None:
        """Append one line; floats that JSON lacks are the names that `values.encode` gives them."""
        if self._file is None:
            return
        data = f"{_dumps(record)}\n".encode()
        try:
            written = os.write(self._file, data)
            if written < len(data):  # the disk is full after this many bytes: the next call says so
                os.write(self._file, data[written:])
            self._size += len(data)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failed = f"{self.path} cannot be written to any more: {error.strerror or error}"
        sys.stderr.write(f"amp-checks: warning: {self.failed}; the training goes on, unrecorded\n")
        if self._file is not None:
            with contextlib.suppress(OSError):  # a file that cannot be cut: a line without an end is not read
                os.ftruncate(self._file, self._size)
            self.close()

    def close(self) -> None:
        """End writing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A record that was read.

    Attributes:
        records: the whole lines, in order, floats decoded.
        missing: what it lacks, in words; nothing where the run ended and said so.
    """

    path: Path
    records: tuple[Record, ...]
    missing: tuple[str, ...]

    @property
    def start(self) -> Record:
        return self.records[0]


def is_record(path: Path) -> bool:
    """Whether that is a file that begins as the record of a watched run."""
    try:
        with path.open("rb") as file:
            return f'"schema":"{SCHEMA}"'.encode() in file.readline(4096)
    except OSError:
        return False


def read(path: Path) -> Recorded:
    """Every whole line.

    Raises:
        UsageError: there is no such file, or it is no record of a watched run.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the record {path} cannot be read: {error.strerror or error}") from error
    *lines, rest = data.split(b"\n")
    missing = [f"its last line is cut off after {len(rest)} bytes"] if rest else []
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            _ = record["kind"]
        except (ValueError, TypeError, KeyError) as error:
            if not records:
                break
            raise UsageError(f"{path}:{number} is no line of a record: {error}") from error
        records.append(_decoded(record))
    if not records or records[0].get("schema") != SCHEMA:
        raise UsageError(f"{path} is no record that amp-checks watch wrote")
    files.check_version(path, SCHEMA, records[0].get("version"), VERSION)
    if records[-1]["kind"] != "end":
        steps = [record["step"] for record in records if record["kind"] == "step"]
        last = f"after step {steps[-1]}" if steps else "before its first step"
        missing.append(f"the run did not say that it ended: it was killed, or the disk was full, {last}")
    return Recorded(path=path, records=tuple(records), missing=tuple(missing))


def _dumps(record: Record) -> str:
    """As strict JSON; most records hold no float that it lacks."""
    try:
        return json.dumps(record, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return json.dumps(values.encode(record), allow_nan=False, separators=(",", ":"))


_NAMED = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_TEXTS = frozenset({"module", "where", "op", "message", "remedy", "batch", "rule", "reason", "place"})


def _decoded(value: Any, key: str = "") -> Any:
    """With floats as `values.encode` named them, save in fields that hold text."""
    if isinstance(value, dict):
        return {name: _decoded(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [_decoded(part, key) for part in value]
    return _NAMED.get(value, value) if isinstance(value, str) and key not in _TEXTS else value
