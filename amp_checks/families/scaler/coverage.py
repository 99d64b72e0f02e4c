"""Which behaviours of a scaler, and which optimizers, a run has covered: two tables for reports and documentation.

``python -m amp_checks.families.scaler.coverage`` prints them as Markdown, without verdicts.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from amp_checks.core import Result
from amp_checks.families.scaler.behaviours import BEHAVIOURS
from amp_checks.families.scaler.cases import CASES
from amp_checks.families.scaler.optimizers.cases import IMPLEMENTATIONS, OptimizerCase
from amp_checks.records import fixtures, known_defects


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        name: ``"17 inf, -inf and NaN are found"``, ``"Adam, fused"``.
        cases: ids of the rows that are about it.
        defects: reasons of the known defects among them.
        verdicts: status -> how many items of the run ended with it; empty without a run.
    """

    name: str
    cases: tuple[str, ...]
    defects: tuple[str, ...]
    verdicts: dict[str, int]


def behaviours(results: Iterable[Result] = ()) -> list[Row]:
    """One row for each of the 48 behaviours."""
    verdicts = _verdicts(results)
    return [_row(f"{number} {title}", _cases_about(number), verdicts) for number, title in sorted(BEHAVIOURS.items())]


def optimizers(results: Iterable[Result] = ()) -> list[Row]:
    """One row for each implementation of each optimizer of torch.optim."""
    verdicts = _verdicts(results)
    rows = [case for case in CASES if isinstance(case, OptimizerCase)]
    return [_row(f"{case.optimizer}, {_implementation(case)}", [case.id], verdicts) for case in rows]


def _implementation(case: OptimizerCase) -> str:
    name = case.id.removeprefix(f"optimizer-{case.optimizer}").strip("-")
    return name if name.removesuffix("-graph") in {*IMPLEMENTATIONS, "sparse"} else "the only one"


def _cases_about(number: int) -> list[str]:
    """Optimizers stand in a table of their own; here only where they alone are about a behaviour."""
    about = [case for case in CASES if number in getattr(case, "behaviours", ())]
    others = [case.id for case in about if not isinstance(case, OptimizerCase)]
    return others or [case.id for case in about]


def _verdicts(results: Iterable[Result]) -> dict[str, collections.Counter[str]]:
    found: dict[str, collections.Counter[str]] = {}
    for result in results:
        if result.family == "scaler":
            found.setdefault(result.case, collections.Counter())[str(result.status)] += 1
    return found


def _row(name: str, cases: list[str], verdicts: dict[str, collections.Counter[str]]) -> Row:
    total: collections.Counter[str] = collections.Counter()
    for case in cases:
        total += verdicts.get(case, collections.Counter())
    # Whatever torch is running: the tables are documentation, too.
    entries = known_defects.load(fixtures.fixture("known_defects/scaler.json"))
    reasons = dict.fromkeys(defect.reason for defect in entries if defect.case in cases)
    return Row(name=name, cases=tuple(cases), defects=tuple(reasons), verdicts=dict(total))


def markdown(rows: Iterable[Row], *, heading: str) -> Iterator[str]:
    """Lines of a Markdown table; the verdicts are a column where there are any."""
    listed = list(rows)
    judged = any(row.verdicts for row in listed)
    yield f"| {heading} | cases | known defects |{' verdicts |' if judged else ''}"
    yield f"| --- | --- | --- |{' --- |' if judged else ''}"
    for row in listed:
        shown = ", ".join(f"`{case}`" for case in row.cases[:4])
        more = f" and {len(row.cases) - 4} more" if len(row.cases) > 4 else ""
        verdicts = ", ".join(f"{count} {status}" for status, count in row.verdicts.items())
        told = f" {verdicts or 'none ran'} |" if judged else ""
        yield f"| {row.name} | {shown}{more} | {'; '.join(row.defects)} |{told}"


if __name__ == "__main__":
    print("\n".join(markdown(behaviours(), heading="behaviour")))  # noqa: T201 - what this command is for
    print()  # noqa: T201
    print("\n".join(markdown(optimizers(), heading="optimizer, implementation")))  # noqa: T201
