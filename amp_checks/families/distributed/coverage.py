"""What the rows cover: the tables of ``docs/distributed-behaviours.md``, printed by running this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_checks.families.distributed.behaviours import BEHAVIOURS, NOT_HERE
from amp_checks.families.distributed.cases import CASES
from amp_checks.records import fixtures, known_defects


def behaviours() -> dict[str, Any]:
    """One row for each behaviour: ``"4 uneven inputs under Join"``."""
    entries = known_defects.load(fixtures.fixture("known_defects/distributed.json"))
    rows = []
    for number, name in BEHAVIOURS.items():
        cases = [case.id for case in CASES if number in case.behaviours]
        reasons = [defect.reason for defect in entries if defect.case in cases]
        rows.append({"name": f"{number} {name}", "cases": cases, "defects": list(dict.fromkeys(reasons))})
    return {"family": "distributed", "title": "behaviour", "rows": rows}


TABLES = (behaviours,)


def markdown(table: dict[str, Any]) -> Iterator[str]:
    """Lines of a Markdown table; a behaviour without a case says why."""
    yield f"| {table['title']} | cases | known defects |"
    yield "| --- | --- | --- |"
    for row in table["rows"]:
        cases = ", ".join(f"`{case}`" for case in row["cases"]) or NOT_HERE[int(row["name"].split()[0])]
        yield f"| {row['name']} | {cases} | {'; '.join(row['defects'])} |"


if __name__ == "__main__":
    print("\n".join(markdown(behaviours())))  # noqa: T201 - what this command is for
