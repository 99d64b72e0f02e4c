"""Results on disk as they come, one JSON line each: what is left when a run is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from amp_checks.core import SuiteError

FILE = "results.partial.jsonl"


class Stream:
    """Appends each result to a file in the report folder; the file goes once the whole reports stand beside it."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder is not None else None
        self._begun = False

    def write(self, entry: dict[str, Any]) -> None:
        """Put one result, as `json_format.result_to_json` gives it, on disk before the next item starts.

        Raises:
            SuiteError: the folder cannot be written to; told once, later results are let go.
        """
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a" if self._begun else "w", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            path, self._path = self._path, None
            raise SuiteError(f"the report {path} cannot be written: {error.strerror or error}") from error
        self._begun = True

    def drop(self) -> None:
        """Remove the file: the reports are complete."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
