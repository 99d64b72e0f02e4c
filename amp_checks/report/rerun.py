"""The one command that runs an item again: the suite's own by its id, a user's test by its node id."""

from __future__ import annotations

import shlex

from amp_checks.core import Result
from amp_checks.report.document import Document


def command(result: Result, document: Document) -> str:
    """What to type to run the item of that result, one of the document's, again."""
    if (test := document.tests.get(result.id)) is not None:
        return f"pytest {shlex.quote(test.node)}"
    return of_item(result.id, result.backend, plant=document.selection.get("plant"))


def of_item(item: str, backend: str, *, plant: str | None) -> str:
    """What to type to run one of the suite's own items again; ``plant``: the fault that was planted around it."""
    if plant is not None:
        return f"amp-checks run --plant {shlex.quote(plant)} --backend {shlex.quote(backend)}"
    return f"amp-checks run --item {shlex.quote(item)}"
