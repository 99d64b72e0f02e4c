"""Where the reports of a run go, and writing them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
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
        self._stdout = json == "-"
        self._json = start / json if json and json != "-" else None
        self._folder = start / folder if folder else None
        self._step_summary = Path(step_summary) if step_summary else None
        self.stream = Stream(self._folder)

    @property
    def notes(self) -> list[str]:
        """What is not written, and why."""
        lacks = [kind.lacks() for kind in FORMATS.values()] if self._folder else []
        return [f"not written: {why}" for why in lacks if why is not None]

    def claim(self) -> None:
        """Keep other runs out of the folder, and remove the reports of an earlier run.

        Those would outlive this run, were it refused or killed, and be taken for its own.

        Raises:
            UsageError: a report could not be written at the end, or another run is writing there.
        """
        targets = [self._json] if self._json else []
        targets += [self._folder / kind.file for kind in FORMATS.values()] if self._folder else []
        for target in targets:
            check_target(target)
        self.stream.claim()
        for target in targets:
            if target.is_file():
                target.unlink(missing_ok=True)

    def write(self, document: Document) -> Document:
        """Write every report, each apart: one that cannot be written, for a full disk say, takes no other with it.

        Returns the document as it was written last: with errors, and broken, where a report could not be.
        """
        files = [_Write(FORMATS["json"], self._json)] if self._json else []
        if self._folder:
            files += [_Write(kind, self._folder / kind.file) for kind in FORMATS.values() if kind.lacks() is None]
        appended = [_Write(FORMATS["markdown"], self._step_summary, append=True)] if self._step_summary else []
        printed = [_Write(FORMATS["json"], None)] if self._stdout else []
        whole = True
        for writes in (files, appended, printed):
            if failures := _try_all(writes, document):
                whole = False
                errors = [*document.errors, *failures]
                document = dataclasses.replace(document, ended=Outcome.BROKEN, errors=errors)
                _try_all(files, document)  # those that can be written say that others could not
        if whole:
            self.stream.drop()
        return document


@dataclasses.dataclass(frozen=True, slots=True)
class _Write:
    """Writes a document in one format to one place; None is standard output."""

    kind: Format
    path: Path | None
    append: bool = False

    def __call__(self, document: Document) -> None:
        text = self.kind.render(document)
        if self.path is None:
            sys.stdout.write(text)
        elif self.append:
            self._append(self.path, text)
        else:
            write_text(self.path, text)

    @staticmethod
    def _append(path: Path, text: str) -> None:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise SuiteError(f"$GITHUB_STEP_SUMMARY, {path}, cannot be written: {error.strerror or error}") from error


def _try_all(writes: Iterable[_Write], document: Document) -> list[str]:
    """Do each; what those say that cannot write."""
    failures = []
    for write in writes:
        try:
            write(document)
        except (SuiteError, OSError) as error:
            failures.append(str(error))
    return failures
