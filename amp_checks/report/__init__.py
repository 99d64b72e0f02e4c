"""Results as documents: a registry of formats, the one place to add another.

Every format is a function from a `Document` to text, so that a report can be made while a run ends or years later, from
one run or from several merged.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util

from amp_checks.core import SuiteError, UsageError
from amp_checks.report.document import RESULTS, Document


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One report format.

    Attributes:
        file: its file in a report folder.
        module: the module here whose ``render(document) -> str`` makes it.
        needs: packages of the optional extra ``report`` without which it cannot be made.
        audits: whether it can show audits, or what AMP is worth, alone, without results of the suite.
    """

    file: str
    module: str
    needs: tuple[str, ...] = ()
    audits: bool = False

    def lacks(self) -> str | None:
        """Why this format cannot be made here, with what to do about it, or None where it can."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if not missing:
            return None
        return f"{self.file} needs {' and '.join(missing)}: pip install 'amp-checks[report]'"

    def render(self, document: Document) -> str:
        """The document in this format.

        Raises:
            UsageError: a package that it needs is not installed, or the document holds no results and the format
                needs some.
            SuiteError: it could not be made of that document.
        """
        if (why := self.lacks()) is not None:
            raise UsageError(why)
        if document.schema != RESULTS and not self.audits:
            able = ", ".join(sorted(name for name, one in FORMATS.items() if one.audits))
            raise UsageError(f"{self.file} is made of results, and there are none; these formats need none: {able}")
        try:
            text: str = importlib.import_module(f"amp_checks.report.{self.module}").render(document)
        except SuiteError:
            raise
        except Exception as error:
            raise SuiteError(f"{self.file} could not be made: {type(error).__name__}: {error}") from error
        return text


FORMATS: dict[str, Format] = {
    "json": Format(file="results.json", module="json_format", audits=True),
    "junit": Format(file="junit.xml", module="junit"),
    "markdown": Format(file="summary.md", module="markdown"),
    "html": Format(file="report.html", module="html", needs=("jinja2", "matplotlib"), audits=True),
}
