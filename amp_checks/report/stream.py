"""Results on disk as they come, one JSON line each: what is left when a run is killed.

The file begins with a line that names its schema and holds environment and selection; then each item leaves a line when
it begins (``{"begun": id, "family": ..., "backend": ...}``) and one with its result. `read` makes a document of it,
marked incomplete.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from amp_checks.core import Outcome, Result, Status, SuiteError, UsageError
from amp_checks.report.document import Document
from amp_checks.report.files import ODD, check_version
from amp_checks.report.values import encode, result_from_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "results.partial.jsonl"
SCHEMA = "amp_checks/results.partial"
VERSION = 2


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
            SuiteError: the folder cannot be written to; reported once, later results are dropped.
        """
        head = {"schema": SCHEMA, "version": VERSION, "environment": environment, "selection": selection}
        self._put(head, mode="w")

    def note_begun(self, item: str, *, family: str, backend: str) -> None:
        """Put on disk that the item begins, before it does: should it take the process with it, it is named.

        Raises:
            SuiteError: as `begin`.
        """
        self._put({"begun": item, "family": family, "backend": backend})

    def write(self, entry: dict[str, Any]) -> None:
        """Put one result, as `values.result_to_json` gives it, on disk before the next item starts.

        Raises:
            SuiteError: as `begin`.
        """
        self._put(entry)

    def _put(self, entry: dict[str, Any], *, mode: str = "a") -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode, encoding="utf-8", errors=ODD) as file:
                file.write(json.dumps(encode(entry), ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            path, self._path = self._path, None
            raise SuiteError(f"the report {path} cannot be written: {error.strerror or error}") from error

    def drop(self) -> None:
        """Remove the file: the reports are complete."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def unfinished(item: str, message: str, *, family: str, backend: str) -> Result:
    """The result of an item that ended without one: it measured nothing, and passes for nothing.

    Args:
        item: its id, which ends with the backend's.
        message: what became of it.
        family: its family.
        backend: the id of its backend.
    """
    check, _, case = item.removesuffix(f"-{backend}").partition("-")
    return Result(
        check=check,
        case=case,
        family=family,
        backend=backend,
        emulated=backend.startswith("emulated-"),
        status=Status.ERROR,
        message=message,
    )


def is_stream(text: str) -> bool:
    """Whether that is the text of such a file."""
    return text.startswith(f'{{"schema": "{SCHEMA}"')


def read(path: Path, text: str) -> Document:
    """A document of what a killed run left: incomplete, items that had begun and not finished as errors.

    Raises:
        UsageError: another version, a line that is no JSON or no result; a last line that was cut short is let go.
    """
    whole = text[: text.rfind("\n") + 1].splitlines()
    results: dict[str, Result] = {}
    begun: dict[str, Result] = {}
    try:
        head, *entries = [json.loads(line) for line in whole]
        check_version(path, SCHEMA, head["version"], VERSION)
        for entry in entries:
            if "begun" in entry:
                where = {"family": entry["family"], "backend": entry["backend"]}
                begun[entry["begun"]] = unfinished(entry["begun"], "the run ended while this item ran", **where)
            else:
                results[entry["id"]] = result_from_json(entry)
        return Document(
            results=list((begun | results).values()),
            environment=head["environment"],
            selection=head["selection"],
            ended=Outcome.UNFINISHED,
        )
    except UsageError:
        raise
    except (SuiteError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read as results: {type(error).__name__}: {error}") from error
