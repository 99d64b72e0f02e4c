"""Which rows are about which behaviour of a scaler, and about which optimizer: tables for reports and documentation.

Each is ``{"family": "scaler", "title": ..., "rows": [{"name": ..., "cases": [ids], "defects": [reasons]}]}``.
``python -m amp_checks.families.scaler.coverage`` prints them as Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_checks.families.scaler.behaviours import BEHAVIOURS
from amp_checks.families.scaler.cases import CASES
from amp_checks.families.scaler.optimizers.cases import IMPLEMENTATIONS, ROWS, OptimizerCase
from amp_checks.records import fixtures, known_defects

MOST_CASES = 4
"""How many cases of a row Markdown names."""


def behaviours() -> dict[str, Any]:
    """One row for each of the 48 behaviours: ``"17 inf, -inf and NaN are found"``."""
    return _table("behaviour", {f"{number} {name}": _cases_about(number) for number, name in BEHAVIOURS.items()})


def optimizers() -> dict[str, Any]:
    """One row for each implementation of each optimizer of torch.optim: ``"Adam, fused"``."""
    rows = {f"{case.optimizer}, {_implementation(case)}": [case.id] for case in ROWS}
    return _table("optimizer, implementation", rows)


TABLES = (behaviours, optimizers)


def _table(title: str, rows: dict[str, list[str]]) -> dict[str, Any]:
    # Whatever torch is running: the tables are documentation, too.
    entries = known_defects.load(fixtures.fixture("known_defects/scaler.json"))
    return {
        "family": "scaler",
        "title": title,
        "rows": [
            {
                "name": name,
                "cases": cases,
                "defects": list(dict.fromkeys(defect.reason for defect in entries if defect.case in cases)),
            }
            for name, cases in rows.items()
        ],
    }


def _implementation(case: OptimizerCase) -> str:
    name = case.id.removeprefix(f"optimizer-{case.optimizer}").strip("-")
    return name if name.removesuffix("-graph") in {*IMPLEMENTATIONS, "sparse"} else "the only one"


def _cases_about(number: int) -> list[str]:
    """Optimizers have a table to themselves; here only where they alone are about a behaviour."""
    about = [case for case in CASES if number in case.behaviours]
    others = [case.id for case in about if not isinstance(case, OptimizerCase)]
    return others or [case.id for case in about]


def markdown(table: dict[str, Any]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| {table['title']} | cases | known defects |"
    yield "| --- | --- | --- |"
    for row in table["rows"]:
        cases = ", ".join(f"`{case}`" for case in row["cases"][:MOST_CASES])
        more = f" and {len(row['cases']) - MOST_CASES} more" if len(row["cases"]) > MOST_CASES else ""
        yield f"| {row['name']} | {cases}{more} | {'; '.join(row['defects'])} |"


if __name__ == "__main__":
    print("\n\n".join("\n".join(markdown(table())) for table in TABLES))  # noqa: T201 - what this command is for
