"""Every faulty loop is found, named and placed, its corrected twin raises no alarm, every rule is tripped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amp_checks.audit import Report, Severity
from amp_checks.audit.rules import RULES
from amp_checks.audit.rules.errors import KNOWN
from amp_checks.families.audit.mutants import TWO_ERRORS, alarms_in, audited, missed, pairs
from amp_checks.records import fixtures

PAIRS = pairs()

REPORTS = json.loads(fixtures.fixture("audit/reports.json").read_text(encoding="utf-8"))["reports"]
"""Faults of training steps that were reported in public: the number that a pair names, and where they were reported."""

ITEMS = [pytest.param(pair, backend, id=f"{pair.id}-{backend}") for pair in PAIRS for backend in pair.backends]


@pytest.mark.parametrize(("pair", "backend"), ITEMS)
def test_fault_is_found_named_and_placed(pair: Any, backend: str) -> None:
    report = audited(pair, backend, fault=True)
    assert missed(pair, report) == "", [(one.rule, one.place, one.message) for one in report.diagnostics]
    _says_one_thing(pair, report)


def _says_one_thing(pair: Any, report: Report) -> None:
    """One fault is one error at most; what follows from it is told as that, and has no remedy of its own."""
    errors = [one.rule for one in report.diagnostics if one.severity is Severity.ERROR]
    assert len(errors) <= (2 if pair.id in TWO_ERRORS else 1), errors
    rules = {one.rule for one in report.diagnostics}
    for one in report.diagnostics:
        assert (one.remedy == "") == (one.follows_from is not None)
        assert one.follows_from is None or (one.follows_from in rules and one.severity is Severity.NOTE)


@pytest.mark.parametrize(("pair", "backend"), ITEMS)
def test_corrected_twin_raises_no_alarm(pair: Any, backend: str) -> None:
    report = audited(pair, backend, fault=False)
    assert alarms_in(report) == []
    assert report.summary["reference"] == "float64"


def test_every_rule_has_a_loop_that_trips_it() -> None:
    tripped = {pair.rule for pair in PAIRS}
    assert set(RULES) | {row.rule for row in KNOWN} == tripped


def test_every_field_report_has_a_pair() -> None:
    assert {pair.report for pair in PAIRS if pair.report} == set(REPORTS)


def test_further_loops() -> None:
    assert sum(pair.report == "" for pair in PAIRS) >= 40
    assert len({pair.id for pair in PAIRS}) == len(PAIRS)


def test_pairs_that_are_placed_mark_their_line() -> None:
    assert [pair.id for pair in PAIRS if pair.placed and not pair.lines()] == []


def test_fixtures_stand_alone() -> None:
    for path in Path(fixtures.fixture("audit")).glob("*.py"):
        assert "amp_checks" not in path.read_text(encoding="utf-8").replace("amp_checks_fixtures", "")
