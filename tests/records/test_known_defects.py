"""Known defects are strict in both directions, and name the very finding they expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.core import Finding, Result, Status, SuiteError, exact
from amp_checks.records import fixtures, known_defects
from amp_checks.records.known_defects import Defect, Expected
from amp_checks.suite import collect
from amp_checks.torch_api import machine


def defect(**changed: Any) -> Defect:
    fields: dict[str, Any] = {
        "id": "no-floor",
        "check": "check_floor",
        "case": "backoff",
        "backends": ("cpu-*",),
        "torch": ">=2.11.0a0",
        "expects": (Expected(subject="scale after * skips", actual="0.0"),),
        "reason": "backoff has no floor",
        "link": "",
    }
    return Defect(**(fields | changed))


def result(*findings: Finding, status: Status = Status.FAILED, backend: str = "cpu-float16") -> Result:
    return Result(
        check="check_floor",
        case="backoff",
        family="scaler",
        backend=backend,
        emulated=False,
        status=status,
        findings=findings,
    )


EXPECTED = exact("scale after 166 skips", actual=0.0, expected=1.0, why="documented")
ELSE = exact("parameters", actual="nan", expected="finite", why="documented")


def test_the_failure_it_names_is_an_expected_one() -> None:
    found = known_defects.judge(result(EXPECTED), [defect()])
    assert found.status is Status.KNOWN_DEFECT
    assert "backoff has no floor" in found.message


def test_a_new_fault_cannot_hide_inside_it() -> None:
    found = known_defects.judge(result(EXPECTED, ELSE), [defect()])
    assert found.status is Status.FAILED
    assert "not explained by known defect 'no-floor': parameters" in found.message


def test_another_value_is_a_new_fault() -> None:
    other = exact("scale after 166 skips", actual=2.0, expected=1.0, why="documented")
    assert known_defects.judge(result(other), [defect()]).status is Status.FAILED


def test_all_findings_that_it_names_must_show() -> None:
    both = defect(expects=(Expected(subject="scale *"), Expected(subject="parameters")))
    found = known_defects.judge(result(EXPECTED), [both])
    assert found.status is Status.FAILED
    assert "but not found: parameters" in found.message


def test_an_unexpected_pass_fails() -> None:
    found = known_defects.judge(result(status=Status.PASSED), [defect()])
    assert found.status is Status.FAILED
    assert "did not show" in found.message


@pytest.mark.parametrize("status", [Status.ERROR, Status.NOT_EMULATED, Status.UNAVAILABLE])
def test_what_reached_no_verdict_stays_as_it_is(status: Status) -> None:
    assert known_defects.judge(result(status=status), [defect()]).status is status


def test_another_backend_is_not_excused() -> None:
    assert known_defects.judge(result(EXPECTED, backend="emulated-cuda-float16"), [defect()]).status is Status.FAILED


@pytest.mark.parametrize(
    ("version", "inside"),
    [("2.11.0a0+5228986c39.nv25.6", True), ("2.13.0+cpu", True), ("2.15.0+cu130", False), ("2.10.1", False)],
)
def test_version_ranges_admit_alpha_and_local_builds(version: str, inside: bool) -> None:
    assert defect(torch=">=2.11.0a0,<2.15").in_range(version) is inside


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"defects": [{"id": "x"}]}',
        json.dumps({"defects": [{name: [] for name in known_defects.FIELDS}]}),
        json.dumps({"defects": [{name: [{"subjct": "*"}] for name in known_defects.FIELDS}]}),
    ],
)
def test_a_malformed_file_gives_one_message_that_names_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scaler.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError, match=r"scaler\.json"):
        known_defects.load(file)


def test_every_registered_entry_matches_an_item_of_a_full_listing() -> None:
    everything = collect.collect(backends=[backends.backend(name) for name in backends.IDS], full=True)
    names = [(item.check.__name__, item.case.id, item.backend.id) for item in everything]
    assert known_defects.unmatched(names) == []


def test_an_entry_that_no_item_matches_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_defects, "registered", lambda: (defect(case="renamed"),))
    assert known_defects.unmatched([("check_floor", "backoff", "cpu-float16")]) == ["no-floor"]


def _file(tmp_path: Path, **changed: Any) -> Path:
    entry: dict[str, Any] = {
        "id": "d",
        "check": "check_floor",
        "case": "backoff",
        "backends": ["cpu-*"],
        "torch": ">=2",
    }
    entry |= {"expects": [{"subject": "scale"}], "reason": "no floor", "link": ""}
    path = tmp_path / "scaler.json"
    path.write_text(json.dumps({"defects": [entry | changed]}), encoding="utf-8")
    return path


def test_a_condition_of_the_machine_must_be_one_that_is_known(tmp_path: Path) -> None:
    [entry] = known_defects.load(_file(tmp_path, machine="onednn-has-no-float16-lstm"))
    assert entry.machine == "onednn-has-no-float16-lstm"
    with pytest.raises(SuiteError, match=r"scaler.json: entry 'd' names the machine condition 'full-moon'; there"):
        known_defects.load(_file(tmp_path, machine="full-moon"))


def test_a_defect_of_some_machines_is_registered_only_where_its_condition_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, machine="full-moon")
    monkeypatch.setattr(fixtures, "fixture", lambda _: path.parent)
    holds = True
    monkeypatch.setitem(machine.CONDITIONS, "full-moon", lambda: holds)
    try:
        for holds in (True, False):
            machine.holds.cache_clear()
            known_defects.registered.cache_clear()
            assert len(known_defects.registered()) == int(holds)
    finally:
        machine.holds.cache_clear()
        known_defects.registered.cache_clear()
