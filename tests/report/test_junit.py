"""JUnit XML: valid by schema, its counts those of its cases, its properties those that were measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from documents import ENVIRONMENT, RESULTS, document, error, result
from stubs import StubCase

from amp_checks.core import Outcome, Result, Status, bounded, exact
from amp_checks.report import FORMATS

xmlschema = pytest.importorskip("xmlschema", reason="a schema is checked by the xmlschema package")

SCHEMA = Path(__file__).with_name("junit.xsd")


@pytest.fixture(scope="module")
def schema() -> Any:
    return xmlschema.XMLSchema(str(SCHEMA))


def rendered(results: Sequence[Result] = RESULTS, **more: Any) -> ET.Element:
    return ET.fromstring(FORMATS["junit"].render(document(results, **more)))


def counts(suite: ET.Element) -> dict[str, int]:
    return {name: int(suite.get(name, "-1")) for name in ("tests", "failures", "errors", "skipped")}


def properties(element: ET.Element) -> dict[str | None, str | None]:
    """Of a suite."""
    return {one.get("name"): one.get("value") for one in element.findall("properties/property")}


def told(case: ET.Element) -> dict[str, str]:
    """The properties of a case, as those read them who read them of its output."""
    return dict(re.findall(r"^\[\[PROPERTY\|([^=]+)=(.*?)\]\]$", case.findtext("system-out", ""), re.MULTILINE))


def case(root: ET.Element, name: str) -> ET.Element:
    [found] = [one for one in root.iter("testcase") if told(one).get("id") == name]
    return found


@pytest.mark.parametrize("results", [RESULTS, RESULTS[:1], ()], ids=["every status", "one", "none"])
def test_it_is_valid(schema: Any, results: Sequence[Result]) -> None:
    schema.validate(FORMATS["junit"].render(document(results, ended=Outcome.UNFINISHED)))


def test_the_counts_are_those_of_the_cases() -> None:
    for suite in rendered():
        found = {"tests": len(suite.findall("testcase"))}
        for name, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            found[name] = len(suite.findall(f"testcase/{outcome}"))
        assert counts(suite) == found


def test_every_status_has_its_outcome() -> None:
    root = rendered([result(f"op{number}", status) for number, status in enumerate(Status)])
    outcomes = {one[0].get("type"): one[0].tag for one in root[0][1:]}
    assert outcomes == {
        None: "system-out",
        "failed": "failure",
        "error": "error",
        "known defect": "skipped",
        "not emulated": "skipped",
        "unavailable": "skipped",
    }


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (lambda root: root[0].remove(root[0][0]), "properties"),
        (lambda root: root[0].set("tests", "many"), "tests"),
        (lambda root: root[0].attrib.pop("errors"), "errors"),
        (lambda root: root[0][1].set("time", "nan"), "time"),
        (lambda root: ET.SubElement(root[0][1], "failed"), "failed"),
        (lambda root: root[0][1].insert(0, root[0][0]), "properties"),
        (lambda root: root[0][1].set("file", "test_amp.py"), "file"),
        (lambda root: root[0].set("time", "0.0001"), "time"),
        (lambda root: root[0].append(root[0][0]), "properties"),
        (lambda root: root[0].append(root[0][1]), "duplicated"),
        (lambda root: root.append(root[0]), "duplicated"),
    ],
    ids=[
        "no properties",
        "no number",
        "no count",
        "no time",
        "unknown outcome",
        "properties in a case",
        "a place",
        "digits",
        "properties last",
        "case twice",
        "suite twice",
    ],
)
def test_the_schema_refuses_what_is_wrong(schema: Any, spoil: Callable[[ET.Element], Any], names: str) -> None:
    root = rendered(RESULTS[:2])
    spoil(root)
    with pytest.raises(xmlschema.XMLSchemaValidationError, match=names):
        schema.validate(ET.tostring(root, encoding="unicode"))


def test_what_was_measured_stands_in_the_properties() -> None:
    found = (
        error(0.5),
        error(1.5),
        bounded("steps skipped of 100", actual=3, ratio=3.0, threshold=4.5, why="a skipped step learns nothing"),
        exact("scale after step 1", actual=65536.0, expected=65536.0, why="docs"),
        exact("scale after step 2", actual=32768.0, expected=32768.0, why="docs"),
    )
    facts = told(case(rendered([result("x", Status.PASSED, *found)]), "check_output_dtype-x-emulated-cuda-float16"))
    assert facts["ratio"] == "1.5"
    assert facts["threshold"] == "2.0"
    assert facts["steps_skipped"] == "3"
    assert facts["scale"] == "32768.0"
    assert "scale" not in told(case(rendered(), "check_error-mm-cpu-float16"))


def test_a_property_stays_on_its_line_and_ends_where_it_ends(schema: Any) -> None:
    odd = exact("x[[0]] of\r\n[[PROPERTY|ratio=0]]", actual=1, expected=2, why="stand-in")
    text = FORMATS["junit"].render(document([result("x", Status.FAILED, odd)]))
    schema.validate(text)
    facts = told(next(ET.fromstring(text).iter("testcase")))
    assert facts["ratio"] == "inf"
    assert facts["subject"] == "x[[0] ] of [[PROPERTY|ratio=0] ]"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"errors": ["nothing ran: no CUDA", "and more"]}, "nothing ran: no CUDA"),
        ({"ended": Outcome.UNFINISHED}, "did not finish"),
    ],
    ids=["conditions", "incomplete"],
)
@pytest.mark.parametrize("results", [RESULTS[:1], ()], ids=["one passed", "none"])
def test_a_run_that_is_not_right_as_a_whole_is_not_green(
    schema: Any, results: Sequence[Result], more: dict[str, Any], message: str
) -> None:
    schema.validate(FORMATS["junit"].render(document(results, **more)))
    suite = rendered(results, **more)[-1]
    assert counts(suite) == {"tests": 1, "failures": 0, "errors": 1, "skipped": 0}
    assert message in str(suite.find("testcase/error").get("message"))  # type: ignore[union-attr]
    assert len(rendered(RESULTS[:1])) == 1


def test_each_suite_says_where_it_ran_and_whether_to_the_end() -> None:
    environment = ENVIRONMENT | {"devices": [{"name": "H100"}], "seeds": "from names"}
    suites = {
        suite.get("name"): properties(suite) for suite in rendered(environment=environment, ended=Outcome.UNFINISHED)
    }
    assert {name: facts.get("device") for name, facts in suites.items()} == {
        "cpu-float16": "CPU",
        "cuda-float16": "H100",
        "emulated-cuda-float16": "CPU, emulated",
        "run": None,
    }
    assert suites["cpu-float16"]["seeds"] == "from names"
    assert suites["cpu-float16"]["complete"] == "False"


def test_a_run_with_failures_leaves_a_valid_file(
    schema: Any, pytester: pytest.Pytester, stub_suite: Callable[[Sequence[StubCase]], None]
) -> None:
    stub_suite([StubCase(id=does, does=does) for does in ("pass", "fail", "break", "lack")])
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-backend", "cpu-float16")
    assert pytester.runpytest_inprocess(*fixed, "--amp-report-dir", "report").ret == 1
    file = pytester.path / "report" / "junit.xml"
    schema.validate(str(file))
    suite, run = ET.parse(file).getroot()
    assert counts(run)["errors"] == 1  # an item was skipped that nobody declared
    assert counts(suite) == {"tests": 4, "failures": 1, "errors": 1, "skipped": 1}
