"""The HTML page: what it says, that it needs nothing but itself, and what a missing package means."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import documents
import pytest
from documents import CURVES, RESULTS, document, error, result
from stubs import StubCase

from amp_checks import cli
from amp_checks.core import Outcome, Status, SuiteError, UsageError
from amp_checks.report import FORMATS, files, merging
from amp_checks.report.document import Document, Place

pytest.importorskip("jinja2", reason="the optional extra `report` is not installed")
pytest.importorskip("matplotlib", reason="the optional extra `report` is not installed")

VOID = {"meta", "link", "input", "br", "wbr", "hr", "img"}


class Reader(HTMLParser):
    """Checks nesting, and gathers ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.update([values["id"]] if "id" in values else [])
        self.links += [values["href"]] if tag == "a" and "href" in values else []
        self.sources += [values[name] for name in ("src", "srcset", "data", "action") if name in values]
        self.sources += [values["href"]] if tag == "link" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(" ".join(data.split()))

    @property
    def said(self) -> str:
        return " ".join(filter(None, self.text))


def read(content: Document) -> Reader:
    return Reader(FORMATS["html"].render(content))


def test_the_page_is_well_formed_and_every_link_leads_somewhere() -> None:
    page = read(document(curves=CURVES * 2))
    assert [name for name, count in page.ids.items() if count > 1] == []
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert page.sources == ["data:,"]


@pytest.mark.parametrize("scheme", ["http:", "https:", "//", "@import", "url("])
def test_the_page_names_nothing_outside_itself(scheme: str) -> None:
    text = FORMATS["html"].render(document(curves=CURVES))
    around = [text[max(0, at - 40) : at + 60] for at in range(len(text)) if text.startswith(scheme, at)]
    # An SVG names its own namespaces, its own clip paths; a script may hold a comment.
    harmless = ("http://www.w3.org/", "url(#", "// The page", "// no access")
    assert [found for found in around if not any(word in found for word in harmless)] == []


def test_the_verdict_comes_first_and_each_failing_item_has_a_card_with_its_command() -> None:
    page = read(document())
    assert page.said.index("AMP IS WRONG: 2 of 7 checks failed on cpu-float16, emulated-cuda-float16 (emulated)") < 200
    failing = [one for one in RESULTS if one.status in (Status.FAILED, Status.ERROR)]
    assert len(failing) == 3
    for one in failing:
        assert f"#item-{one.id}" in page.links
        assert f"item-{one.id}" in page.ids
        assert f"amp-checks run --item {one.id}" in page.said
    assert "float32 <&>" in page.said
    assert "Traceback <most recent>" in page.said
    assert "CUDA devices: not run" not in page.said


def test_a_users_test_is_run_again_by_its_own_name() -> None:
    name = "check_error-addmm-cpu-float16"
    place = Place(node="tests/test_amp.py::test_amp[x]", file="tests/test_amp.py", line=3)
    said = read(document(tests={name: place})).said
    assert "pytest 'tests/test_amp.py::test_amp[x]'" in said
    assert f"amp-checks run --item {name}" not in said


def test_what_is_no_failure_is_told_apart() -> None:
    said = read(document()).said
    assert "the device's rules, this CPU's kernels" in said
    assert "1 were planted" not in said
    assert "1 faults were planted in this run, 1 were caught" in said
    assert "exp is wrong" in said
    assert "torch.cuda.Stream cannot be emulated" in said
    assert "What emulated results do not say" in said
    assert "cudnn.allow_tf32" in said


def test_a_run_without_emulation_or_cuda_says_so() -> None:
    said = read(document([result("mm", Status.PASSED, documents.RIGHT, **documents.ON_CPU)])).said
    assert "CUDA: not run." in said
    assert "CUDA devices: not run" in said
    assert "What emulated results do not say" not in said
    assert "no faults planted" in said


def test_an_unfinished_run_and_one_that_missed_its_conditions_give_no_green_page() -> None:
    right = [result("mm", Status.PASSED, documents.RIGHT)]
    assert 'class="verdict right"' in FORMATS["html"].render(document(right))
    stopped = FORMATS["html"].render(document(right, ended=Outcome.UNFINISHED))
    assert 'class="verdict none"' in stopped
    assert "NO VERDICT: the run did not finish; the 1 checks that did are right" in stopped
    unmet = FORMATS["html"].render(document(right, errors=["3 items were skipped without a declared reason"]))
    assert 'class="verdict none"' in unmet
    assert "<b>Error</b>: 3 items were skipped without a declared reason" in unmet


def test_cells_show_the_worst_verdict_and_the_largest_share_of_a_threshold() -> None:
    from amp_checks.report.html import _cell, _matrices

    [matrix] = list(_matrices(RESULTS, ["ops"]))
    family, backends, cases = matrix
    assert family == "ops"
    assert backends == ["cuda-float16", "cpu-float16", "emulated-cuda-float16"]
    rows = dict(cases)
    on_cuda, on_cpu, emulated = rows["mm"]
    assert on_cuda is not None
    assert on_cuda.status is Status.UNAVAILABLE
    assert on_cpu is not None
    assert (on_cpu.status, on_cpu.share, on_cpu.heat) == (Status.PASSED, 0.3, 1)
    assert emulated is not None
    assert (emulated.status, emulated.checks, emulated.share) == (Status.PASSED, 2, 0.35)
    assert rows["exp"][0] is None
    failing = rows["addmm"][1]
    assert failing is not None
    assert (failing.heat, failing.anchor) == (4, "item-check_error-addmm-cpu-float16")
    several = _cell([result("mm"), result("mm", Status.KNOWN_DEFECT), result("mm", Status.ERROR)])
    assert several is not None
    assert several.status is Status.ERROR


def test_ratios_that_json_lacks_and_thresholds_of_zero_are_shown_not_lost() -> None:
    some = [
        result("nan", Status.FAILED, documents.NAN),
        result("inf", Status.FAILED, error(float("inf"))),
        result("zero", Status.FAILED, error(0.5, threshold=0.0)),
    ]
    page = read(document(some))
    assert "Error ratios against their thresholds" in page.said
    assert "inf" in page.said


def test_a_page_without_measured_errors_or_results_is_still_whole() -> None:
    assert "NO VERDICT: nothing ran" in read(document([])).said
    assert "Error ratios" not in read(document([result("mm", Status.PASSED, documents.RIGHT)])).said


def test_the_same_document_gives_the_same_page() -> None:
    assert FORMATS["html"].render(document(curves=CURVES)) == FORMATS["html"].render(document(curves=CURVES))


def test_curves_are_drawn_and_told_in_words() -> None:
    said = read(document(curves=CURVES)).said
    assert "AMP, seed 0: from 4 to 1 over 4 values, lowest 1, highest 4, 1 not finite" in said
    assert "FP32, 5 seeds: 3 to 5 at first, 0.5 to 1.5 at last" in said
    assert "skipped step: 2" in said


@pytest.mark.parametrize(
    "change",
    [
        {"lines": []},
        {"lines": [{"name": "x", "values": []}]},
        {"lines": [{"name": "x", "values": ["much"]}]},
        {"band": {"name": "x", "low": [1.0], "high": []}},
        {"lines": None},
        {"marks": [1]},
    ],
)
def test_a_malformed_curve_gives_one_message(change: dict[str, Any]) -> None:
    with pytest.raises(SuiteError, match="malformed curve"):
        FORMATS["html"].render(document(curves=[CURVES[0] | change]))


def test_curves_of_parts_are_kept_in_the_whole() -> None:
    other = [CURVES[0] | {"title": "another"}]
    parts = [document(RESULTS[:2], curves=CURVES), document(RESULTS[2:], curves=[*CURVES, *other])]
    assert merging.merge(parts).curves == [*CURVES, *other]


def test_merged_parts_say_where_each_ran() -> None:
    parts = [document(RESULTS[:2]), document(RESULTS[2:], environment=documents.ENVIRONMENT | {"torch": "2.14.1"})]
    said = read(merging.merge(parts)).said
    assert "Where parts of this report ran" in said
    assert "torch 2.14.1" in said


@pytest.fixture
def without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def lacking(name: str, package: str | None = None) -> Any:
        return None if name == "jinja2" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", lacking)


@pytest.mark.usefixtures("without_jinja2")
def test_without_the_extra_the_format_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"report.html needs jinja2: pip install 'amp-checks\[report\]'"):
        FORMATS["html"].render(document())
    files.write_text(tmp_path / "results.json", FORMATS["json"].render(document()))
    assert cli.entry(["report", str(tmp_path / "results.json"), "--format", "html"]) == 4
    assert capsys.readouterr().err == "amp-checks: error: report.html needs jinja2: pip install 'amp-checks[report]'\n"


@pytest.mark.usefixtures("without_jinja2")
def test_without_the_extra_a_report_folder_holds_the_other_formats(
    pytester: pytest.Pytester, stub_suite: Callable[[Sequence[StubCase]], None]
) -> None:
    stub_suite([StubCase(id="one")])
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-backend", "cpu-float16")
    done = pytester.runpytest_inprocess(*fixed, "--amp-report-dir", "report")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["amp-checks: note: not written: report.html needs jinja2: pip install 'amp-checks*'"])
    assert {file.name for file in (pytester.path / "report").iterdir()} == {"results.json", "junit.xml", "summary.md"}
