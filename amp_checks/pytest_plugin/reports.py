"""Where the reports of a run go, and writing them."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from amp_checks.core import Outcome, SuiteError
from amp_checks.report import FORMATS, Format
from amp_checks.report.document import Document
from amp_checks.report.files import check_target, write_text
from amp_checks.report.stream import Stream


class Reports:
    """The places that a run writes to.

    Args:
        start: the folder that relative names begin in.
        json: a file for the results, ``-`` for standard output.
        folder: a folder for every format, and for `Stream` while the run goes on.
        step_summary: the file of GitHub's own that Markdown is appended to.
    """

    def __init__(self, *, start: Path, json: str | None, folder: str | None, step_summary: str | None) -> None:
        self._files = [(FORMATS["json"], start / json)] if json and json != "-" else []
        self._files += [(kind, start / folder / kind.file) for kind in FORMATS.values()] if folder else []
        self._stdout = json == "-"
        self._step_summary = Path(step_summary) if step_summary else None
        self.stream = Stream(start / folder if folder else None)

    @property
    def notes(self) -> list[str]:
        """What is not written, and why."""
        return [f"not written: {why}" for kind, _ in self._files if (why := kind.lacks()) is not None]

    def claim(self) -> None:
        """Keep other runs out of the folder, and remove the reports of an earlier run.

        Those would outlive this run, were it refused or killed, and be taken for its own.

        Raises:
            UsageError: a report could not be written at the end, or another run is writing there.
        """
        for _, path in self._files:
            check_target(path)
        self.stream.claim()
        for _, path in self._files:
            if path.is_file():
                path.unlink(missing_ok=True)

    def write(self, document: Document) -> Document:
        """Write every report, each apart: one that cannot be written, for a full disk say, takes no other with it.

        Returns the document as it was written last: with errors, and broken, where a report could not be.
        """
        files = [(kind, functools.partial(write_text, path)) for kind, path in self._files if kind.lacks() is None]
        appended = [(FORMATS["markdown"], self._append)] if self._step_summary else []
        printed = [(FORMATS["json"], sys.stdout.write)] if self._stdout else []
        whole = True
        for some in (files, appended, printed):
            if failures := _write(some, document):
                whole = False
                document = dataclasses.replace(document, ended=Outcome.BROKEN, errors=[*document.errors, *failures])
                _write(files, document)  # those that can be written say that others could not
        if whole:
            self.stream.drop()
        return document

    def _append(self, text: str) -> None:
        path = self._step_summary
        assert path is not None
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise SuiteError(f"$GITHUB_STEP_SUMMARY, {path}, cannot be written: {error.strerror or error}") from error


def _write(places: Iterable[tuple[Format, Callable[[str], object]]], document: Document) -> list[str]:
    """Write the document in each format, by what puts the text in its place; what those say that cannot."""
    failures = []
    for kind, put in places:
        try:
            put(kind.render(document))
        except (SuiteError, OSError) as error:
            failures.append(str(error))
    return failures
