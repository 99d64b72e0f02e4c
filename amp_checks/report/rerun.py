"""The one command that runs an item again: the suite's own by its id, a user's test by its node id.

``tests`` in a results document, optional, tells a user's tests from the suite's own items::

    {id of the item: {"node": "tests/test_amp.py::test_amp[...]", "file": "tests/test_amp.py", "line": 38}}
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a user's test stands: its pytest node id, its file from pytest's root folder, its line (from 1) or None."""

    node: str
    file: str
    line: int | None


def command(item: str, tests: Mapping[str, Mapping[str, Any]]) -> str:
    """What to type to run that item again.

    Args:
        item: its id.
        tests: as in a results document.
    """
    if item in tests:
        return f"pytest {shlex.quote(str(tests[item]['node']))}"
    return f"amp-checks run --item {shlex.quote(item)}"
