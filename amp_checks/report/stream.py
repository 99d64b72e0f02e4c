"""Results on disk as they come, one JSON line each: what is left when a run is killed.

The file begins with a line that names its schema and holds environment and selection; then each item leaves a line when
it begins (``{"begun": id}``) and one with its result. `read` makes a results document of it, marked incomplete.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from amp_checks import backends
from amp_checks.core import Result, Status, SuiteError, UsageError
from amp_checks.report import json_format
from amp_checks.suite import collect

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "results.partial.jsonl"
SCHEMA = "amp_checks/results.partial"
VERSION = 1


class Stream:
    """Appends to a file in the report folder; the file goes once the whole reports stand beside it.

    Args:
        folder: the report folder, or None: nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder is not None else None
        self._claim: int | None = None  # a descriptor: a file object warns when a run that broke off leaves it open

    def claim(self) -> None:
        """Keep other runs out of the folder, on systems that have locks, until `release` or the end of the process.

        Raises:
            UsageError: another run is writing there.
        """
        if self._path is None or fcntl is None:
            return
        with contextlib.suppress(OSError):  # what is wrong with the folder is said by whoever writes there
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._claim = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                folder, self._path = self._path.parent, None  # what is there is the other's
                raise UsageError(
                    f"another run is writing its reports into {folder}: wait for it, or name another folder"
                ) from None

    def release(self) -> None:
        """Let other runs into the folder."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def __del__(self) -> None:
        self.release()

    def begin(self, *, environment: dict[str, Any], selection: dict[str, Any]) -> None:
        """Start the file.

        Args:
            environment: as in a results document.
            selection: the same.

        Raises:
            SuiteError: the folder cannot be written to; told once, results are let go.
        """
        if self._path is None:
            return
        head = {"schema": SCHEMA, "version": VERSION, "environment": environment, "selection": selection}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._write(head, mode="w")
        except OSError as error:
            self._give_up(error)

    def note_begun(self, item: str) -> None:
        """Put on disk that the item begins, before it does: should it take the process with it, it is named.

        Raises:
            SuiteError: as `begin`.
        """
        self._append({"begun": item})

    def write(self, entry: dict[str, Any]) -> None:
        """Put one result, as `json_format.result_to_json` gives it, on disk before the next item starts.

        Raises:
            SuiteError: as `begin`.
        """
        self._append(entry)

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            self._write(entry, mode="a")
        except OSError as error:
            self._give_up(error)

    def _write(self, entry: dict[str, Any], *, mode: str) -> None:
        assert self._path is not None
        with self._path.open(mode, encoding="utf-8", errors=json_format.ODD) as file:
            file.write(json.dumps(json_format.encode(entry), ensure_ascii=False, allow_nan=False) + "\n")

    def _give_up(self, error: OSError) -> None:
        path, self._path = self._path, None
        raise SuiteError(f"the report {path} cannot be written: {error.strerror or error}") from error

    def drop(self) -> None:
        """Remove the file: the reports are complete."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def unfinished(item: str, message: str, *, family: str | None = None) -> Result:
    """The result of an item that ended without one: it measured nothing, and passes for nothing.

    Args:
        item: its id.
        message: what became of it.
        family: the family, where the caller knows it; None: as the tables have it.
    """
    backend = max((name for name in backends.IDS if item.endswith(f"-{name}")), key=len, default="unknown")
    check, _, case = item.removesuffix(f"-{backend}").partition("-")
    return Result(
        check=check,
        case=case,
        family=family or collect.family_of(item, backend),
        backend=backend,
        emulated=backend.startswith("emulated-"),
        status=Status.ERROR,
        message=message,
    )


def is_stream(text: str) -> bool:
    """Whether that is the text of such a file."""
    return text.startswith(f'{{"schema": "{SCHEMA}"')


def read(path: Path, text: str) -> dict[str, Any]:
    """A results document of what a killed run left: incomplete, items that had begun and not finished as errors.

    Raises:
        UsageError: another version, or a line that is no JSON; a last line that was cut short is let go.
        SuiteError: a line that is no result.
    """
    whole = text[: text.rfind("\n") + 1].splitlines()
    try:
        head, *entries = [json.loads(line) for line in whole]
        if head["version"] != VERSION:
            raise UsageError(json_format.other_version(path, SCHEMA, head["version"], VERSION))
        results = {entry["id"]: json_format.result_from_json(entry) for entry in entries if "begun" not in entry}
        begun = [entry["begun"] for entry in entries if "begun" in entry]
        environment, selection = head["environment"], head["selection"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be read as results: {type(error).__name__}: {error}") from error
    for item in begun:
        results.setdefault(item, unfinished(item, "the run ended while this item ran"))
    return json_format.document(results.values(), environment=environment, selection=selection, complete=False)
