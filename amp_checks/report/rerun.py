"""The one command that runs an item again: the suite's own by its id, a user's test by its node id.

``tests`` in a results document, optional, tells a user's tests from the suite's own items::

    {id of the item: {"node": "tests/test_amp.py::test_amp[...]", "file": "tests/test_amp.py", "line": 38}}
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from amp_checks.core import Result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a user's test stands: its pytest node id, its file from pytest's root folder, its line (from 1) or None."""

    node: str
    file: str
    line: int | None


def command(result: Result, content: Mapping[str, Any]) -> str:
    """What to type to run the item of that result again.

    Args:
        result: what came of it.
        content: the results document that it stands in; its ``tests`` and its ``selection`` are looked at.
    """
    if test := content.get("tests", {}).get(result.id):
        return f"pytest {shlex.quote(str(test['node']))}"
    return of_item(result.id, result.backend, plant=content.get("selection", {}).get("plant"))


def of_item(item: str, backend: str, *, plant: str | None) -> str:
    """What to type to run one of the suite's own items again; ``plant``: the fault that was planted around it."""
    if plant is not None:
        return f"amp-checks run --plant {shlex.quote(plant)} --backend {shlex.quote(backend)}"
    return f"amp-checks run --item {shlex.quote(item)}"
