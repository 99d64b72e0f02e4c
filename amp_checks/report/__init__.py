"""Results as documents: a registry of formats, the one place to add another.

Every format is a function from a results document (`amp_checks.report.json_format`) to text, so that a report can be
made while a run ends or years later, from one run or from several merged.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One report format: its file in a report folder, and the module whose ``render(document) -> str`` makes it."""

    file: str
    module: str

    def render(self, document: dict[str, Any]) -> str:
        """The document in this format."""
        text: str = importlib.import_module(f"amp_checks.report.{self.module}").render(document)
        return text


FORMATS: dict[str, Format] = {
    "json": Format(file="results.json", module="json_format"),
    "junit": Format(file="junit.xml", module="junit"),
    "markdown": Format(file="summary.md", module="markdown"),
}
