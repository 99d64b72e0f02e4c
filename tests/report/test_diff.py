"""The comparison of two results documents: what is told, what counts as worse, and what a gate gets."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from documents import ENVIRONMENT, RESULTS, RIGHT, WRONG, document, error, plain, result

from amp_checks import cli
from amp_checks.cli import diff
from amp_checks.core import Outcome, Result, Status, SuiteError, UsageError, exact
from amp_checks.report import FORMATS, files, merging, recorded
from amp_checks.report.diff import formats
from amp_checks.report.diff.compare import compare as compare_documents
from amp_checks.report.diff.difference import Change, Difference
from amp_checks.report.document import Document
from amp_checks.report.summary import count


def compare(old: list[Result], new: list[Result], **options: Any) -> Difference:
    return compare_documents(document(old), document(new), **options)


def only(changes: Any) -> Change:
    [change] = changes
    assert isinstance(change, Change)
    return change


def test_a_document_is_the_same_as_itself() -> None:
    found = compare_documents(document(), document())
    assert found.changes == []
    assert found.environment == []
    assert found.verdict() == f"the same: {len(RESULTS)} items, no difference"


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (Status.PASSED, Status.FAILED, True),
        (Status.PASSED, Status.ERROR, True),
        (Status.UNAVAILABLE, Status.FAILED, True),
        (Status.FAILED, Status.ERROR, True),
        (Status.KNOWN_DEFECT, Status.FAILED, True),
        (Status.PASSED, Status.KNOWN_DEFECT, True),
        (Status.PASSED, Status.NOT_EMULATED, True),
        (Status.KNOWN_DEFECT, Status.UNAVAILABLE, True),
        (Status.FAILED, Status.PASSED, False),
        (Status.FAILED, Status.KNOWN_DEFECT, False),
        (Status.KNOWN_DEFECT, Status.PASSED, False),
        (Status.UNAVAILABLE, Status.PASSED, False),
        (Status.NOT_EMULATED, Status.UNAVAILABLE, False),
    ],
)
def test_a_verdict_that_changed(old: Status, new: Status, worse: bool) -> None:
    found = compare([result("mm", old)], [result("mm", new)])
    change = only(found.verdicts)
    assert (change.old, change.new, change.worse) == (str(old), str(new), worse)
    assert found.worse == int(worse)
    assert found.verdict().startswith("WORSE: 1 items" if worse else "not worse: 1 differences")


def test_failed_findings_are_told_even_where_the_verdict_stays() -> None:
    other = exact("gradient", actual="float16", expected="float32", why="rule")
    found = compare([result("mm", Status.FAILED, WRONG)], [result("mm", Status.FAILED, other)])
    assert found.verdicts == []
    gone, come = found.failures
    assert (gone.subject, gone.new, gone.worse) == ("output", None, False)
    assert (come.subject, come.old, come.worse) == ("gradient", None, True)
    assert found.worse == 1


def test_two_findings_of_one_subject_are_kept_apart() -> None:
    found = compare([result("mm", Status.FAILED, RIGHT, WRONG)], [result("mm", Status.FAILED, WRONG, WRONG)])
    assert only(found.failures).subject == "output"
    found = compare([result("mm", Status.PASSED, RIGHT, RIGHT)], [result("mm", Status.FAILED, RIGHT, WRONG)])
    assert only(found.failures).subject == "output (2)"


def test_a_rule_that_changed_is_told_though_both_runs_are_right() -> None:
    fp32 = exact("output", actual="float32", expected="float32", why="rule")
    found = compare([result("mm", Status.PASSED, RIGHT)], [result("mm", Status.PASSED, fp32)])
    change = only(found.changes)
    assert change == only(found.expectations)
    assert (change.old, change.new, change.worse) == ("float16", "float32", False)


@pytest.mark.parametrize(
    ("old", "new", "told", "worse"),
    [
        (0.5, 0.6, False, False),  # 0.05 of the threshold of 2
        (0.5, 0.8, True, True),
        (0.8, 0.5, True, False),
        (0.5, math.inf, True, True),
        (0.5, math.nan, True, True),
        (math.nan, math.nan, False, False),
        (math.inf, 3.0, True, False),
    ],
)
def test_an_error_ratio_drifts_by_shares_of_its_threshold(old: float, new: float, told: bool, worse: bool) -> None:
    found = compare([result("mm", Status.PASSED, error(old))], [result("mm", Status.PASSED, error(new))])
    assert [change.worse for change in found.drift] == ([worse] if told else [])


def test_how_much_drift_is_told_can_be_chosen() -> None:
    pair = [result("mm", Status.PASSED, error(0.5))], [result("mm", Status.PASSED, error(0.6))]
    assert only(compare(*pair, drift=0.04).drift).new == "0.6 of 2"


def test_a_threshold_that_changed_is_told() -> None:
    found = compare([result("mm", Status.PASSED, error(0.5, 2.0))], [result("mm", Status.PASSED, error(0.5, 2.1))])
    assert (only(found.drift).new, only(found.drift).worse) == ("0.5 of 2.1", False)


def test_items_that_one_run_holds_alone() -> None:
    some = [result("mm"), result("old", Status.UNAVAILABLE), result("bmm")]
    more = [result("mm"), result("wrong", Status.FAILED, WRONG), result("right")]
    found = compare(some, more)
    assert [(change.item.split("-")[1], change.worse) for change in found.vanished] == [("bmm", True), ("old", False)]
    assert [(change.item.split("-")[1], change.worse) for change in found.appeared] == [
        ("right", False),
        ("wrong", True),
    ]
    assert found.items == 1


def test_time_and_environment_are_told_and_decide_nothing() -> None:
    old = document([result("mm", seconds=1.0), result("bmm", seconds=0.1)])
    changed = ENVIRONMENT | {"torch": "2.14.1", "switches": {"cudnn.allow_tf32": False}, "gpu": "H100"}
    new = document([result("mm", seconds=2.5), result("bmm", seconds=0.9)], environment=changed)
    found = compare_documents(old, new)
    assert found.changes == []
    assert (only(found.times).old, only(found.times).new) == ("1.0 s", "2.5 s")
    assert [(change.item, change.old, change.new) for change in found.environment] == [
        ("gpu", None, "H100"),
        ("switches.cudnn.allow_tf32", "True", "False"),
        ("torch", "2.13.0", "2.14.1"),
    ]


@pytest.fixture
def arguments(tmp_path: Path) -> Any:
    """Writes two documents; gives the arguments that name them."""

    def written(old: Document, new: Document, *options: str) -> argparse.Namespace:
        for name, content in (("old", old), ("new", new)):
            files.write_text(tmp_path / f"{name}.json", FORMATS["json"].render(content))
        parser = argparse.ArgumentParser()
        diff.add_arguments(parser)
        return parser.parse_args([str(tmp_path / "old.json"), str(tmp_path / "new.json"), *options])

    return written


GOOD, BAD = document([result("mm", Status.PASSED, RIGHT)]), document([result("mm", Status.FAILED, WRONG)])


def cut(one: Document) -> Document:
    return dataclasses.replace(one, ended=Outcome.UNFINISHED)


@pytest.mark.parametrize(
    ("old", "new", "options", "status"),
    [
        (GOOD, GOOD, [], 0),
        (GOOD, BAD, [], 1),
        (BAD, GOOD, [], 0),
        (BAD, GOOD, ["--fail-on", "any"], 1),
        (GOOD, GOOD, ["--fail-on", "any"], 0),
        (GOOD, BAD, ["--fail-on", "never"], 0),
        (GOOD, cut(GOOD), [], 4),
        (cut(GOOD), GOOD, [], 4),
        (GOOD, cut(BAD), [], 1),
    ],
)
def test_the_exit_status_gates(arguments: Any, old: Any, new: Any, options: list[str], status: int) -> None:
    assert diff.main(arguments(old, new, *options)) == status


def test_an_unfinished_run_is_named(arguments: Any, capsys: pytest.CaptureFixture[str]) -> None:
    diff.main(arguments(GOOD, cut(GOOD)))
    assert capsys.readouterr().err == "amp-checks: error: NO VERDICT: NEW did not finish\n"


def test_text_tells_the_worse_first_and_the_verdict_last(arguments: Any, capsys: pytest.CaptureFixture[str]) -> None:
    old = document([result("a", Status.FAILED, WRONG), result("z", Status.PASSED, error(0.2))])
    new = document([result("a", Status.PASSED, RIGHT), result("z", Status.FAILED, error(3.0))])
    assert diff.main(arguments(old, new)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "Verdicts that changed (2):",
        "worse check_output_dtype-z-emulated-cuda-float16",
        "        passed -> failed",
        "      check_output_dtype-a-emulated-cuda-float16",
        "        failed -> passed",
    ]
    assert "        0.2 of 2 -> 3 of 2" in lines
    assert lines[-1] == "WORSE: 1 items are worse (5 differences in all)"


def test_markdown_gives_the_verdict_first_and_keeps_its_tables_whole(arguments: Any, tmp_path: Path) -> None:
    assert diff.main(arguments(GOOD, BAD, "--format", "markdown", "-o", str(tmp_path / "diff.md"))) == 1
    lines = (tmp_path / "diff.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "## amp_checks diff: WORSE: 1 items are worse (2 differences in all)"
    rows = [line for line in lines if line.startswith("| worse")]
    assert len(rows) == 2
    assert {line.replace("\\|", "").count("|") for line in rows} == {5}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (0.0, 0.0, "1 items in both: no times recorded\n"),
        (0.0, 2.0, "1 items in both: no times recorded, then 2.0 s\n"),
        (1.0, 2.0, "1 items in both: 1.0 s, then 2.0 s\n"),
    ],
)
def test_times_that_were_not_recorded_are_told_as_that(old: float, new: float, told: str) -> None:
    found = compare([result("mm", seconds=old)], [result("mm", seconds=new)])
    assert told in formats.FORMATS["text"](found)


def test_json_holds_every_change(arguments: Any, capsys: pytest.CaptureFixture[str]) -> None:
    many = [document([result(f"op{n}", Status.PASSED)]) for n in range(50)]
    old = merging.merge(many)
    diff.main(arguments(old, document([]), "--format", "json"))
    content = json.loads(capsys.readouterr().out)
    assert (content["schema"], content["version"], content["worse"]) == ("amp_checks/diff", 1, 50)
    assert len(content["vanished"]) == 50
    diff.main(arguments(old, document([])))
    assert "... and 20 more" in capsys.readouterr().out


@pytest.mark.parametrize("drift", ["0", "-1", "nan"])
def test_a_drift_that_means_nothing_is_refused(arguments: Any, drift: str) -> None:
    with pytest.raises(UsageError, match="--drift takes a positive share"):
        diff.main(arguments(GOOD, GOOD, f"--drift={drift}"))


@pytest.mark.parametrize("name", ["results", "environment", "summary", "complete"])
def test_a_document_with_a_part_missing_is_refused_by_name(arguments: Any, name: str) -> None:
    broken = {key: value for key, value in plain(GOOD).items() if key != name}
    paths = arguments(GOOD, GOOD)
    files.write(Path(paths.new), broken)
    with pytest.raises(SuiteError, match=f"new.json is no whole results document: its '{name}' is missing"):
        diff.main(paths)


def test_recorded_results_are_read_back_without_what_is_one_machines(tmp_path: Path) -> None:
    content = document(environment=ENVIRONMENT | {"torch": "9.9.1+cpu", "torch_path": "/somewhere"})
    path = recorded.write(tmp_path, content)
    assert path.name == "torch-9.9.1.json.xz"
    with mock.patch.object(recorded, "versions", return_value={"9.9.1": path}):
        found = recorded.read("9.9.1")
    assert "torch_path" not in found.environment
    assert compare_documents(found, content).changes == []
    with pytest.raises(SuiteError, match="did not finish"):
        recorded.write(tmp_path, cut(content))
    path.write_bytes(b"no archive")
    with (
        mock.patch.object(recorded, "versions", return_value={"9.9.1": path}),
        pytest.raises(SuiteError, match="recorded results"),
    ):
        recorded.read("9.9.1")


def test_supported_versions_have_recorded_results_of_todays_items() -> None:
    assert list(recorded.versions()) == ["2.11.0", "2.13.0", "2.14.1", "2.15.0"]
    for version in recorded.versions():
        content = recorded.read(version)
        assert content.environment["torch"].partition("+")[0] == version
        assert count(content.results)["failed"] == 0
        assert "/" not in json.dumps(content.environment.get("torch_path", ""))


def test_two_versions_are_compared_by_their_recorded_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.entry(["diff", "--results", "2.13.0", "2.13.0"]) == 0
    assert "the same" in capsys.readouterr().out
    assert cli.entry(["diff", "--results", "2.13.0", "1.0.0"]) == 4
    assert "2.15.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("selection", "vanished"),
    [
        ({}, 1),
        ({"backends": ["emulated-cuda-float16"], "families": ["ops"], "items": []}, 1),
        ({"backends": ["cpu-float16"]}, 0),
        ({"families": ["scaler"]}, 0),
        ({"items": ["check_output_dtype-bmm-emulated-cuda-float16"]}, 0),
        ({"items": ["check_output_dtype-mm-emulated-cuda-float16"]}, 1),
    ],
)
def test_what_the_newer_run_did_not_select_has_not_vanished(selection: dict[str, Any], vanished: int) -> None:
    new = document([result("bmm")], selection=selection)
    found = compare_documents(document([result("bmm"), result("mm")]), new)
    assert len(found.vanished) == vanished
    assert found.worse == vanished
