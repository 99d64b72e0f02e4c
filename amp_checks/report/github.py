"""Failures as GitHub annotations: lines that its runner turns into notes on the pull request."""

from __future__ import annotations

from amp_checks.report import rerun
from amp_checks.report.document import Document, Place
from amp_checks.report.summary import BAD

MOST = 10
"""GitHub shows no more than ten of a kind for a step."""


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def _place(test: Place | None) -> str:
    if test is None:
        return ""
    line = f"line={test.line}," if test.line else ""
    return f"file={_escape_property(test.file)},{line}"


def annotate(document: Document) -> list[str]:
    """One ``::error`` for each failed or broken item, up to `MOST`, and one that counts the rest.

    Those of users' tests are on the file and line of the test.
    """
    bad = [result for result in document.results if result.status in BAD]
    written = [
        f"::error {_place(document.tests.get(result.id))}title={_escape_property(f'amp_checks: {result.id}')}::"
        f"{_escape(result.describe())}%0Arun it again: {_escape(rerun.command(result, document))}"
        for result in bad[: MOST - 1 if len(bad) > MOST else MOST]
    ]
    if len(bad) > len(written):
        written.append(f"::error title=amp_checks::{len(bad) - len(written)} more items failed; see the report")
    return written
