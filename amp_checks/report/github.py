"""Failures as GitHub annotations: lines that its runner turns into notes on the pull request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amp_checks.core import Result, Status
from amp_checks.report import rerun

MOST = 10
"""GitHub shows no more than ten of a kind for a step."""


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def _place(test: Mapping[str, Any] | None) -> str:
    if test is None:
        return ""
    line = f"line={test['line']}," if test["line"] else ""
    return f"file={_escape_property(str(test['file']))},{line}"


def annotate(results: Iterable[Result], content: Mapping[str, Any] | None = None) -> list[str]:
    """One ``::error`` for each failed or broken item, up to `MOST`, and one that counts the rest.

    Args:
        results: of one run.
        content: the document of that run: annotations of users' tests stand on the file and line that it gives.
    """
    content = content or {}
    tests = content.get("tests", {})
    bad = [result for result in results if result.status in (Status.FAILED, Status.ERROR)]
    told = [
        f"::error {_place(tests.get(result.id))}title={_escape_property(f'amp_checks: {result.id}')}::"
        f"{_escape(result.describe())}%0Arun it again: {_escape(rerun.command(result, content))}"
        for result in bad[: MOST - 1 if len(bad) > MOST else MOST]
    ]
    if len(bad) > len(told):
        told.append(f"::error title=amp_checks::{len(bad) - len(told)} more items failed; see the report")
    return told
