"""Report formats: what they say, and that what they write can be read back."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import documents
import pytest
import torch  # noqa: F401 - loaded here once, it is not loaded again by every run inside this process
from documents import ENVIRONMENT, NAN, RIGHT, WRONG, audited, audits, plain, result
from stubs import StubCase

from amp_checks import cli
from amp_checks.core import Outcome, Result, Status, SuiteError
from amp_checks.families import FAMILIES
from amp_checks.report import FORMATS, files, github, merging, reading
from amp_checks.report.document import Document, Place
from amp_checks.report.stream import FILE, Stream
from amp_checks.report.values import result_from_json, result_to_json

RESULTS = [
    result("mm", Status.PASSED, RIGHT),
    result("addmm", Status.FAILED, WRONG, NAN),
    result("bmm", Status.ERROR, message="the check itself raised KeyError", detail="Traceback"),
    result("exp", Status.KNOWN_DEFECT, WRONG, message="exp-defect: exp is wrong"),
    result("stream", Status.NOT_EMULATED, message="torch.cuda.Stream cannot be emulated"),
    result("mm", Status.UNAVAILABLE, backend="cuda-float16", emulated=False, message="no device"),
]


def document(results: Sequence[Result] = RESULTS, **more: Any) -> Document:
    return documents.document(results, **more)


def test_json_is_strict_sorted_and_reads_back() -> None:
    text = FORMATS["json"].render(document())
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [entry["id"] for entry in content["results"]] == sorted(one.id for one in RESULTS)
    back = {one.id: one for one in reading.from_values(content, name="text").results}
    assert back[RESULTS[0].id] == RESULTS[0]
    assert back[RESULTS[1].id].findings[0] == WRONG
    assert math.isnan(back[RESULTS[1].id].findings[1].ratio)
    assert back[RESULTS[1].id].findings[0].ratio == math.inf


def test_only_jsons_own_types_travel_between_processes() -> None:
    encoded = result_to_json(RESULTS[1])
    assert type(encoded["status"]) is str
    assert encoded["findings"][0]["ratio"] == "inf"
    assert encoded["findings"][1]["actual"] == "nan"


@pytest.mark.parametrize(
    "change", [{"status": "fine"}, {"findings": [{"subject": "x"}]}, {"findings": None}, {"no_such": 1, "check": None}]
)
def test_a_malformed_result_gives_one_message(change: dict[str, Any]) -> None:
    entry = result_to_json(RESULTS[0]) | change
    if "no_such" in change:
        del entry["case"]
    with pytest.raises(SuiteError, match="malformed result"):
        result_from_json(entry)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "amp_checks/results", "version": 99}'])
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    for command in (["report", str(file)], ["diff", str(file), str(file)]):
        assert cli.entry(command) == 4
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"amp-checks: error: {file} ")


@pytest.mark.parametrize("name", ["no_such.json", "."], ids=["missing", "folder"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.entry(["report", str(tmp_path / name)]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be read as results: " in line


def write(file: Path, made: Document) -> None:
    files.write_text(file, FORMATS["json"].render(made))


def edited(change: Callable[[dict[str, Any]], Any]) -> str:
    content = plain(document())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            edited(lambda c: c.update(version=2)),
            "this amp_checks reads version 1: install the amp_checks that wrote it",
        ),
        (edited(lambda c: c["results"].pop()), "its summary does not agree with its results: "),
        (edited(lambda c: c["results"][1].update(status="failed")), "its summary does not agree with its results: "),
        (edited(lambda c: c["summary"].pop("planted")), "planted is None, and by the results 0"),
        (edited(lambda c: c["results"].__setitem__(0, c["results"][1])), "two of its results are of one item"),
        (
            edited(lambda c: c["results"][3].update(case="bmm")),
            "the result 'check_output_dtype-mm-cuda-float16' is one of",
        ),
        (edited(lambda c: c["results"][0].update(message=None)), "malformed result"),
        (edited(lambda c: c["seconds"].update({c["results"][0]["id"]: "soon"})), "malformed result"),
        (edited(lambda c: c["environment"].pop("devices")), "its environment lacks devices"),
        (edited(lambda c: c.update(errors=[1])), "1 is no text, and should be"),
        (edited(lambda c: c.update(selection={"items": [None]})), "None is no text, and should be"),
        (edited(lambda c: c["results"][0].update(id={})), "malformed results"),
        (edited(lambda c: c.update(errors="none")), "its 'errors' is missing or of another type"),
        (edited(lambda c: c.update(audits=[{"case": "mine"}])), "malformed audit"),
        (edited(lambda c: c.update(complete=False, ended="soon")), "no whole results document: KeyError: 'SOON'"),
        (edited(lambda c: c.update(failed_tests=[1])), "1 is no text, and should be"),
        (edited(lambda c: c.update(tests={"x": {"file": "test_x.py"}})), "no whole results document: TypeError"),
        (edited(lambda c: c)[:-200], "it is no JSON, or cut short"),
        ("[" * 100_000, "it is no JSON, or cut short"),
    ],
)
def test_a_file_that_was_cut_or_edited_is_one_message(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    file.write_text(text, encoding="utf-8")
    good = tmp_path / "good.json"
    write(good, document())
    for command in (["report", str(good), str(file)], ["diff", str(good), str(file)]):
        assert cli.entry(command) == 4
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("amp-checks: error: ")
        assert str(file) in line
        assert message in line


def test_a_report_that_cannot_be_made_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    file.write_text(edited(lambda c: c["environment"].update(devices=[1])), encoding="utf-8")
    assert cli.entry(["report", str(file), "--format", "markdown"]) == 3
    assert capsys.readouterr().err.startswith("amp-checks: error: summary.md could not be made: TypeError: ")


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(b"\xef\xbb\xbf" + FORMATS["json"].render(document()).replace("\n", "\r\n").encode())
    assert plain(reading.read(file)) == plain(document())


def test_a_file_without_the_newer_parts_is_read() -> None:
    content = plain(document(failed_tests=["test_x.py::test_y"], ended=Outcome.BROKEN))
    assert reading.from_values(content, name="new").ended is Outcome.BROKEN
    old = {name: value for name, value in content.items() if name not in ("ended", "failed_tests", "selection")}
    assert plain(reading.from_values(old, name="old")) == plain(document(ended=Outcome.UNFINISHED))


def test_junit_counts_each_status_and_holds_the_measured_error() -> None:
    root = ET.fromstring(FORMATS["junit"].render(document()))
    suites = {suite.get("name"): suite for suite in root}
    emulated = suites["emulated-cuda-float16"]
    assert {name: emulated.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "errors": "1",
        "skipped": "2",
    }
    assert suites["cuda-float16"].get("skipped") == "1"
    failed = next(case for case in emulated.iter("testcase") if case.get("name") == "check_output_dtype-addmm")
    properties = failed.findtext("system-out", "").splitlines()
    assert "[[PROPERTY|id=check_output_dtype-addmm-emulated-cuda-float16]]" in properties
    assert "[[PROPERTY|emulated=true]]" in properties
    assert "[[PROPERTY|threshold=1.0]]" in properties
    failure = failed.find("failure")
    assert failure is not None
    assert "float32 <&> \\u0000 | pipe" in (failure.text or "")


def test_markdown_gives_the_verdict_first_and_keeps_emulated_apart() -> None:
    lines = FORMATS["markdown"].render(document(ended=Outcome.UNFINISHED)).splitlines()
    assert lines[0] == "## amp_checks: AMP IS WRONG: 1 of 3 checks failed on emulated-cuda-float16 (emulated)"
    assert "**Incomplete**" in lines[2]
    table = next(line for line in lines if line.startswith("| ops |"))
    assert table == "| ops | 1 unavailable | not run | 1 passed, 1 failed, 1 known defect, 1 error, 1 not emulated |"
    assert "Run it again: `amp-checks run --item check_output_dtype-addmm-emulated-cuda-float16`" in lines
    assert "### What emulated results do not say" in lines
    assert "| exp is wrong | 1 |" in lines


def test_annotations_escape_what_github_would_read_as_its_own() -> None:
    told = github.annotate(document())
    assert len(told) == 2
    assert told[0].startswith("::error title=amp_checks%3A check_output_dtype-addmm-emulated-cuda-float16::")
    assert "\n" not in told[0]
    tests = {RESULTS[1].id: Place(node="test_amp.py::test[a b]", file="te,st.py", line=7)}
    placed = github.annotate(document(tests=tests))
    assert placed[0].startswith("::error file=te%2Cst.py,line=7,title=amp_checks%3A check_output_dtype-addmm")
    assert placed[0].endswith("run it again: pytest 'test_amp.py::test[a b]'")
    assert placed[1].endswith("run it again: amp-checks run --item check_output_dtype-bmm-emulated-cuda-float16")
    many = document([result(f"op{n}", Status.FAILED, WRONG) for n in range(30)])
    assert len(github.annotate(many)) == github.MOST
    assert "21 more items failed" in github.annotate(many)[-1]


def test_parts_of_a_run_merge_into_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for number, part in enumerate((RESULTS[:3], RESULTS[2:])):
        parts.append(tmp_path / f"{number}.json")
        write(parts[-1], document(part, ended=Outcome.UNFINISHED if number else Outcome.OK))
    assert cli.entry(["report", *map(str, parts), "--format", "json"]) == 0
    merged = json.loads(capsys.readouterr().out)
    assert merged["results"] == plain(document())["results"]
    assert merged["summary"] == plain(document())["summary"]
    assert merged["complete"] is False


def test_parts_of_different_torch_are_told() -> None:
    other = document(RESULTS[3:], environment=ENVIRONMENT | {"torch": "2.14.1"})
    whole = FORMATS["markdown"].render(merging.merge([document(RESULTS[:3]), document(RESULTS[:3]), other]))
    assert "torch 2.13.0 and 2.14.1, no CUDA device" in whole


def test_parts_that_contradict_each_other_do_not_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for number, status in enumerate((Status.PASSED, Status.FAILED)):
        parts.append(tmp_path / f"{number}.json")
        write(parts[-1], document([result("mm", status, WRONG)]))
    assert cli.entry(["report", *map(str, parts)]) == 4
    assert "different results for check_output_dtype-mm-emulated-cuda-float16" in capsys.readouterr().err


def test_a_file_given_twice_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    write(file, document(curves=[{"item": "a", "title": "b", "lines": []}]))
    assert cli.entry(["report", str(file), str(file), "--format", "json"]) == 0
    twice = json.loads(capsys.readouterr().out)
    assert twice.pop("environments") == [{}, {}]
    assert twice == json.loads(file.read_text(encoding="utf-8"))


def test_what_the_parts_selected_is_selected_by_the_whole() -> None:
    parts = [
        {"backends": ["cpu-float16"], "families": ["ops"], "items": [], "full": False, "plant": None},
        {"backends": ["cuda-float16"], "families": ["ops", "scaler"], "items": ["x"], "full": True, "plant": None},
    ]
    assert merging.merge([document(RESULTS[:1], selection=part) for part in parts]).selection == {
        "backends": ["cpu-float16", "cuda-float16"],
        "families": ["ops", "scaler"],
        "items": [],
        "full": True,
        "plant": None,
    }


CUT = {"ended": Outcome.UNFINISHED}


@pytest.mark.parametrize(
    ("results", "more", "status", "verdict"),
    [
        (RESULTS[:1], {}, 0, ""),
        (RESULTS[:3], CUT, 1, "AMP IS WRONG: 1 of 2 checks failed"),
        ([RESULTS[0], RESULTS[2]], CUT, 3, "NO VERDICT: 1 checks broke"),
        (RESULTS[:1], CUT, 2, "NO VERDICT: the run did not finish"),
        (
            RESULTS[:1],
            {"ended": Outcome.BROKEN, "errors": ["2 items left no result"]},
            3,
            "NO VERDICT: the run did not",
        ),
        (
            RESULTS[:1],
            {"failed_tests": ["test_x.py::test_y"]},
            1,
            "FAILED: the test test_x.py::test_y failed; 1 checks",
        ),
        (RESULTS[:1], {"errors": ["CUDA is required"]}, 4, "NO VERDICT: CUDA is required"),
        (RESULTS[5:], {}, 4, "NO VERDICT: nothing ran"),
        ([], {}, 4, "NO VERDICT: nothing ran"),
        (
            RESULTS[2:3],
            {"ended": Outcome.UNFINISHED},
            3,
            "NO VERDICT: 1 checks broke (the suite's own failure), and none ran",
        ),
    ],
    ids=[
        "right",
        "failed",
        "error",
        "incomplete",
        "broken",
        "other test",
        "conditions",
        "unavailable",
        "nothing",
        "error alone",
    ],
)
def test_a_report_gates_as_the_whole_run_would(
    tmp_path: Path,
    results: Sequence[Result],
    more: dict[str, Any],
    status: int,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = [tmp_path / "one.json", tmp_path / "two.json"]
    write(parts[0], document(results[:1]))
    write(parts[1], document(results, **more))
    command = ["report", *map(str, parts), "-o", str(tmp_path / "report.md")]
    assert cli.entry(command) == 0
    capsys.readouterr()
    assert cli.entry([*command, "--gate"]) == status
    err = capsys.readouterr().err
    assert err.startswith(f"amp-checks: error: {verdict}" if status else "")
    assert len(err.splitlines()) == (1 if status else 0)
    assert (tmp_path / "report.md").exists()


@pytest.mark.parametrize(("count", "status"), [(2, 1), (1, 0), (0, 4)], ids=["errors", "no errors", "none"])
def test_a_report_of_audits_gates_too(tmp_path: Path, count: int, status: int) -> None:
    file = tmp_path / "audits.json"
    write(file, audits(audited()[::-1][:count]))
    assert cli.entry(["report", str(file), "--format", "json", "--gate"]) == status


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-backend", "cpu-float16")
    return pytester.runpytest_inprocess(*fixed, *arguments, no_reraise_ctrlc=True)


def test_a_report_folder_holds_every_format(
    pytester: pytest.Pytester, stub_suite: Callable[[Sequence[StubCase]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    step_summary = pytester.path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step_summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    stub_suite([StubCase(id="one"), StubCase(id="wrong", does="fail")])
    done = run(pytester, "--amp-report-dir", "report")
    assert done.ret == 1
    folder = pytester.path / "report"
    assert {file.name for file in folder.iterdir()} == {kind.file for kind in FORMATS.values()}
    assert ET.parse(folder / "junit.xml").getroot().find("testsuite/[@failures='1']") is not None
    assert step_summary.read_text(encoding="utf-8") == (folder / "summary.md").read_text(encoding="utf-8")
    done.stdout.fnmatch_lines(["::error title=amp_checks%3A check_stub-wrong-cpu-float16::*"])


def test_results_are_on_disk_before_the_next_item_starts(
    pytester: pytest.Pytester, stub_suite: Callable[[Sequence[StubCase]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_checks.pytest_plugin.session import Session

    stub_suite([StubCase(id="one"), StubCase(id="two")])
    monkeypatch.setattr(Session, "finish", lambda self, session: None)  # as if the run were killed before its end
    run(pytester, "--amp-report-dir", "report")
    lines = (pytester.path / "report" / FILE).read_text(encoding="utf-8").splitlines()
    told = [entry["id"] for entry in map(json.loads, lines) if "id" in entry]
    assert told == ["check_stub-one-cpu-float16", "check_stub-two-cpu-float16"]


def test_a_report_folder_that_cannot_be_written_is_refused_before_anything_runs(
    pytester: pytest.Pytester, stub_suite: Callable[[Sequence[StubCase]], None]
) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="two")])
    (pytester.path / "taken").write_text("a file where a folder should be", encoding="utf-8")
    done = run(pytester, "--amp-report-dir", "taken")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["amp-checks: error: the report *taken* cannot be written: *taken is no folder"])
    done.stdout.no_fnmatch_line("*passed*")


def test_two_runs_do_not_share_a_report_folder(
    pytester: pytest.Pytester, stub_suite: Callable[[Sequence[StubCase]], None]
) -> None:
    stub_suite([StubCase(id="one")])
    other = Stream(pytester.path / "report")
    other.claim()
    done = run(pytester, "--amp-report-dir", "report")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["amp-checks: error: another run is writing its reports into *report: *"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del other  # as by a run that broke off; what it leaves open is closed without a word
    assert run(pytester, "--amp-report-dir", "report").ret == 0


def test_markdown_tables_what_was_covered() -> None:
    rows = [
        {"name": "17 inf, -inf and NaN are found", "cases": ["mm", "addmm"], "defects": []},
        {"name": "Adam, fused", "cases": [f"case-{n}" for n in range(6)], "defects": ["a defect", "another"]},
    ]
    table = {"family": "ops", "title": "behaviour", "rows": rows}
    text = FORMATS["markdown"].render(document(tables=[table, table | {"family": "scaler"}]))
    assert text.count("<details>") == 1  # no result is of the family scaler
    lines = text.splitlines()
    assert "| 17 inf, -inf and NaN are found | `mm`, `addmm` |  | 1 passed, 1 failed, 1 unavailable |" in lines
    shown = "`case-0`, `case-1`, `case-2`, `case-3` and 2 more"
    assert f"| Adam, fused | {shown} | a defect; another | none ran |" in lines
    assert "<details>" not in FORMATS["markdown"].render(document())


def test_what_the_families_cover_is_in_the_document_of_a_run(
    pytester: pytest.Pytester, stub_suite: Callable[[Sequence[StubCase]], None]
) -> None:
    stub_suite([StubCase(id="one")])
    table = {"family": "stub", "title": "behaviour", "rows": [{"name": "it runs", "cases": ["one"], "defects": []}]}
    FAMILIES["stub"] = dataclasses.replace(FAMILIES["stub"], tables=[lambda: table])
    assert run(pytester, "--amp-report-dir", "report").ret == 0
    assert reading.read(pytester.path / "report" / "results.json").tables == [table]
    text = (pytester.path / "report" / "summary.md").read_text(encoding="utf-8")
    assert "| it runs | `one` |  | 1 passed |" in text
