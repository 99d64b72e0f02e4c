"""Results as JSON. The document (``schema`` names it, ``version`` its layout)::

    {"schema": "amp_checks/results", "version": 1,
     "complete": true,                  false where the run was interrupted or a worker was lost
     "ended": "broken",                 optional, where not complete: unfinished (the default), broken or unmet
     "environment": {...},              as `amp-checks env --json -`
     "selection": {"backends": [...], "families": [...], "full": false, "require_cuda": false},
     "errors": ["..."],                 conditions of the run as a whole that were not met (the gate's own)
     "summary": {...},                  as `amp_checks.report.summary.summarise`
     "results": [{"id", "check", "case", "family", "backend", "emulated", "status", "message", "detail",
                  "findings": [{"subject", "actual", "expected", "ratio", "threshold", "why"}, ...]}, ...],
     "seconds": {id: wall seconds},
     "failed_tests": ["node id", ...],  optional: tests that failed beside the suite's items
     "tests": {id: {"node": "tests/test_amp.py::test_amp[...]", "file": "tests/test_amp.py", "line": 38}},
                                        optional: the users' tests among the items
     "curves": [...],                   optional, for plots: as `amp_checks.report.curves`
     "audits": [...],                   optional, of users' training steps: as `amp_checks.audit.report.as_json`
     "worths": [...],                   optional: as `amp_checks.worth.report.as_json`
     "tables": [...],                   optional, what families cover: as `amp_checks.report.document`
     "environments": [{...}, ...]}      optional, of merged runs: how each part's environment differs

Results are sorted by id and hold nothing that differs between two runs of the same code on the same machine; times
are apart.

What ``amp-checks audit --json`` writes is of the schema ``amp_checks/audits``: the same ``audits``, and nothing else.
``amp-checks worth --json`` writes the schema ``amp_checks/worths``: ``worths`` alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from amp_checks.report import summary
from amp_checks.report.document import AUDITS, WORTHS, Document
from amp_checks.report.values import dumps, result_to_json

VERSION = 1

OPTIONAL = ("failed_tests", "tests", "curves", "audits", "worths", "tables", "environments")
"""Parts of a document that are left out where they are empty."""


def as_values(document: Document) -> dict[str, Any]:
    """The document in plain values."""
    head = {"schema": document.schema, "version": VERSION}
    if document.schema == AUDITS:
        return {**head, "audits": list(document.audits)}
    if document.schema == WORTHS:
        return {**head, "worths": list(document.worths)}
    entries = [result_to_json(result) for result in document.results]
    seconds = {entry["id"]: round(entry.pop("seconds"), 4) for entry in entries}
    tests = {item: dataclasses.asdict(place) for item, place in sorted(document.tests.items())}
    optional = {name: getattr(document, name) for name in OPTIONAL} | {"tests": tests}
    return {
        **head,
        "complete": document.complete,
        **({} if document.complete else {"ended": document.ended.name.lower()}),
        "environment": document.environment,
        "selection": document.selection,
        "errors": list(document.errors),
        "summary": summary.summarise(document.results),
        "results": entries,
        "seconds": seconds,
        **{name: value for name, value in optional.items() if value},
    }


def render(document: Document) -> str:
    """The document as strict JSON."""
    return dumps(as_values(document))
