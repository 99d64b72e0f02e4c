"""All that came of a run, or of several merged: what every report format is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from amp_checks.core import Outcome, Result, SuiteError, Verdict, judge

RESULTS = "amp_checks/results"
AUDITS = "amp_checks/audits"
WORTHS = "amp_checks/worths"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a user's test is: its pytest node id, its file from pytest's root folder, its line (from 1) or None."""

    node: str
    file: str
    line: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All that came of a run.

    Attributes:
        schema: `RESULTS`; `AUDITS` or `WORTHS` where there are those alone and nothing else.
        results: sorted by id.
        environment: as `amp-checks env --json -` prints it.
        selection: what was asked for: backends, families, full, items, plant, require_cuda.
        ended: how the run itself ended, whatever its items say: OK where it came to its end.
        errors: conditions of the run as a whole that are not met, and whatever else keeps it from a verdict.
        failed_tests: node ids of failed tests that are no items of the suite: a user's own.
        tests: id of an item -> the user's test that ran it; the suite's own items are not there.
        curves: for plots, as `amp_checks.report.curves` has them.
        audits: of users' training steps, as `amp_checks.audit.report.as_json` gives them.
        worths: what AMP is worth for programs, as `amp_checks.worth.report.as_json` gives it.
        tables: what the rows of families cover: each
            ``{"family": ..., "title": ..., "rows": [{"name": ..., "cases": [ids], "defects": [reasons]}, ...]}``
        environments: of merged runs, what differs from ``environment``, part by part.
    """

    schema: str = RESULTS
    results: Sequence[Result] = ()
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    selection: dict[str, Any] = dataclasses.field(default_factory=dict)
    ended: Outcome = Outcome.OK
    errors: Sequence[str] = ()
    failed_tests: Sequence[str] = ()
    tests: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    curves: Sequence[dict[str, Any]] = ()
    audits: Sequence[dict[str, Any]] = ()
    worths: Sequence[dict[str, Any]] = ()
    tables: Sequence[dict[str, Any]] = ()
    environments: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(sorted(self.results, key=lambda result: result.id)))

    @property
    def complete(self) -> bool:
        """Whether the run came to its end; one that did not may be wrong, but is never right."""
        return self.ended is Outcome.OK

    @property
    def failures(self) -> list[str]:
        """What failed besides the items, a sentence each: other tests, and audits that found errors."""
        written = [f"the test {name} failed" for name in self.failed_tests]
        for audit in self.audits:
            open_ones = [one for one in audit.get("diagnostics", ()) if one["ignored"] is None]
            if count := sum(one["severity"] == "error" for one in open_ones):
                written.append(f"the audit of {audit.get('case')} under {audit.get('backend')} found {count} errors")
        return written

    @property
    def problems(self) -> list[str]:
        """Everything but the results that keeps the run from being right."""
        return list(dict.fromkeys([*self.errors, *self.failures]))

    @property
    def verdict(self) -> Verdict:
        """What the run comes to, with its exit status."""
        audits = len(self.audits) if self.schema == AUDITS else 0
        return judge(self.results, ended=self.ended, errors=self.errors, failures=self.failures, audits=audits)

    def only_results(self) -> Sequence[Result]:
        """The results.

        Raises:
            SuiteError: there are audits alone.
        """
        if self.schema != RESULTS:
            raise SuiteError(f"the document holds no results: it is of schema {self.schema!r}")
        return self.results
