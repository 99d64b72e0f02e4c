"""Ranges in reports: the page's section and plot, a drawing of its own, the lines of text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import chromium
import pytest
from documents import document

from amp_checks.core import Finding, Result, Status, bounded, exact
from amp_checks.report import FORMATS
from amp_checks.report import ranges as report

NOWHERE = ("nowhere", "nowhere", "float32 too", "float32 too")


def _result(
    case: str,
    backend: str,
    forward: tuple[float | str, float | str, str, str],
    backward: tuple[float | str, float | str, str, str] | None = None,
    why: str = "unlisted; e^x passes 65504",
) -> Result:
    findings: list[Finding] = []
    for direction, ends in (("forward", forward), ("backward", backward or forward)):
        low, high, below, above = ends
        for other, what, at, gives in (("smallest", "below", low, below), ("largest", "above", high, above)):
            subject = f"{direction}: {other} safe magnitude"
            findings.append(bounded(subject, ratio=0.0, threshold=0.15, why=why, actual=at, expected=at))
            findings.append(exact(f"{direction}: {what} it", actual=gives, expected=gives, why=why))
    return Result(
        check=report.CHECK,
        case=case,
        family="fp32-only",
        backend=backend,
        emulated=False,
        status=Status.PASSED,
        findings=tuple(findings),
    )


RESULTS = (
    _result(
        "range-exp",
        "cpu-float16",
        (6e-8, 11.09, "end of the span", "gives inf"),
        (1e-5, 300.0, "underflows", "inaccurate"),
    ),
    _result("range-attention-<masked>", "cpu-float16", NOWHERE, why="composition; 0 / 0"),
    _result("range-exp", "cpu-bfloat16", (1.2e-38, 88.7, "end of the span", "float32 too")),
)


def test_lines_come_back_from_results() -> None:
    lines = report.from_results(RESULTS)

    assert [line.safe for line in lines[:3]] == ["from 6.0e-08 to 11.1", "from 1.0e-05 to 300", "nowhere"]
    assert lines[0].outside == "above: gives inf (e^x passes 65504)"
    assert lines[1].outside == "below: underflows; above: inaccurate (e^x passes 65504)"
    assert lines[2].outside == "float32 too (0 / 0)"
    assert list(report.by_backend(lines)) == ["cpu-float16", "cpu-bfloat16"]


def test_what_is_not_stated_gives_no_reason_and_a_whole_span_says_so() -> None:
    whole = _result(
        "range-cat", "cpu-float16", (6e-8, 65504.0, report.END, report.END), why="promote; nothing is stated"
    )
    line, _ = report.from_results([whole])

    assert (line.why, line.policy, line.outside) == ("", "promote", "the whole span")
    assert report.described([line]) == ["cat  cpu-float16  forward  promote  from 6.0e-08 to 65504  the whole span"]


def test_a_result_without_ranges_gives_no_line() -> None:
    raised = Finding(
        subject="exp at 1", actual="RuntimeError", expected="no exception", ratio=1.0, threshold=1.0, why=""
    )
    broken = Result(
        check=report.CHECK, case="range-exp", family="fp32-only", backend="cpu-float16", emulated=False,
        status=Status.FAILED, findings=(raised,),
    )  # fmt: skip

    assert report.from_results([broken]) == []
    assert report.described([]) == []


def test_a_backend_called_anything_has_its_table() -> None:
    for name in ("jinja2", "matplotlib"):
        pytest.importorskip(name, reason="the optional extra `report` is not installed")

    page = FORMATS["html"].render(document([_result("range-exp", "mine", NOWHERE)]))

    assert 'aria-label="Safe input magnitudes on mine"' in page


def test_the_drawing_tells_directions_and_ends_apart_by_shape() -> None:
    pytest.importorskip("matplotlib", reason="the optional extra `report` is not installed")
    ((backend, svg, _), (_, other, _)) = report.drawn(RESULTS)
    text = "".join(ElementTree.fromstring(svg).itertext())

    assert backend == "cpu-float16"
    for word in ("forward", "backward", "inf or NaN", "finite, wrong", "float32 too", "nowhere safe", "<masked>"):
        assert word in text
    assert "var(--series-1)" in svg
    assert not set(re.findall(r'\bid="([^"]+)"', svg)) & set(re.findall(r'\bid="([^"]+)"', other))
    alone = ElementTree.fromstring(report.standalone(svg))
    assert "--series-1: #" in "".join(alone.itertext())
    assert "prefers-color-scheme: dark" in "".join(alone.itertext())


@pytest.mark.skipif(chromium.find() is None, reason="no Chromium on this machine (AMP_CHROMIUM names one)")
def test_the_section_fits_a_phone_can_be_read_and_reached(tmp_path: Path) -> None:
    for name in ("jinja2", "matplotlib"):
        pytest.importorskip(name, reason="the optional extra `report` is not installed")
    file = tmp_path / "report.html"
    file.write_text(FORMATS["html"].render(document(RESULTS)), encoding="utf-8")
    with chromium.page(tmp_path / "profile") as page:
        for scheme in ("light", "dark"):
            page.size(390, 844, mobile=True)
            page.scheme(scheme)
            page.open(file)
            assert page.errors == []
            assert page.run("document.documentElement.scrollWidth") <= 390
            page.click("nav a[href='#safe']")
            assert page.run("location.hash") == "#safe"
            assert page.run("[...document.querySelectorAll('[aria-label^=\"Safe input\"] tbody tr')].length") == 6
            region = "document.querySelector('[aria-label^=\"Safe input\"]')"
            assert page.run(f"({region}.focus(), document.activeElement === {region})")


def test_a_page_without_ranges_has_no_such_section() -> None:
    pytest.importorskip("jinja2", reason="the optional extra `report` is not installed")
    pytest.importorskip("matplotlib", reason="the optional extra `report` is not installed")

    assert 'id="safe"' not in FORMATS["html"].render(document(()))
