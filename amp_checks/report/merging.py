"""Several runs (shards, devices) as one document, and audits with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from amp_checks.core import Outcome, Result, UsageError
from amp_checks.report.document import RESULTS, Document

T = TypeVar("T")

_WORST_FIRST = (Outcome.BROKEN, Outcome.UNFINISHED, Outcome.UNMET)


def merge(documents: Sequence[Document]) -> Document:
    """The parts of a run as one document; audits alone stay audits.

    Complete only if every part is; selected is what any part selects. The environment is the first part's; where
    another part's differs, its differing values are in ``environments``, part by part.

    Raises:
        UsageError: two parts hold different verdicts on the same item: they are no parts of one run; compare them
            instead.
    """
    if len(documents) == 1:
        return documents[0]
    audits = [audit for document in documents for audit in document.audits]
    worths = [worth for document in documents for worth in document.worths]
    runs = [document for document in documents if document.schema == RESULTS]
    if len(runs) < 2:
        return dataclasses.replace((runs or documents)[0], audits=audits, worths=worths)
    first = runs[0].environment
    return Document(
        results=_results(runs),
        environment=first,
        selection=_selected([run.selection for run in runs]),
        ended=next((one for one in _WORST_FIRST if any(run.ended is one for run in runs)), Outcome.OK),
        errors=_once(error for run in runs for error in run.errors),
        failed_tests=_once(name for run in runs for name in run.failed_tests),
        tests={item: place for run in runs for item, place in run.tests.items()},
        curves=_once(curve for run in runs for curve in run.curves),
        audits=audits,
        worths=worths,
        tables=_once(table for run in runs for table in run.tables),
        environments=[
            {name: value for name, value in run.environment.items() if first.get(name) != value} for run in runs
        ],
    )


def _once(values: Iterable[T]) -> list[T]:
    """The values in their order, each once."""
    found: list[T] = []
    for value in values:
        found += [value] if value not in found else []
    return found


def _results(runs: Sequence[Document]) -> list[Result]:
    merged: dict[str, Result] = {}
    for result in (result for run in runs for result in run.results):
        other = merged.setdefault(result.id, result)
        if dataclasses.replace(other, seconds=result.seconds) != result:
            raise UsageError(
                f"two of the files hold different results for {result.id}: they are no parts of one run; "
                "amp-checks diff compares two runs"
            )
    return list(merged.values())


def _selected(selections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several runs selected together: lists joined, an empty one (everything) stays so; else what any part has."""
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for selection in selections for name in selection):
        values = [selection.get(name) for selection in selections]
        if isinstance(values[0], list):
            parts = [value for value in values if isinstance(value, list)]
            joined[name] = list(dict.fromkeys(one for part in parts for one in part)) if all(values) else []
        else:
            joined[name] = next((value for value in values if value), values[0])
    return joined
