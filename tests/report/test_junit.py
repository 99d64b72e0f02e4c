"""JUnit XML: valid by schema, its counts those of its cases, its properties those that were measured."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from documents import ENVIRONMENT, RESULTS, document, error, result
from stubs import StubCase

from amp_checks.core import Result, Status, bounded, exact
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
    return {one.get("name"): one.get("value") for one in element.findall("properties/property")}


def case(root: ET.Element, name: str) -> ET.Element:
    [found] = [one for one in root.iter("testcase") if properties(one)["id"] == name]
    return found


@pytest.mark.parametrize("results", [RESULTS, RESULTS[:1], ()], ids=["every status", "one", "none"])
def test_it_is_valid(schema: Any, results: Sequence[Result]) -> None:
    schema.validate(FORMATS["junit"].render(document(results, complete=False)))


def test_the_counts_are_those_of_the_cases() -> None:
    for suite in rendered():
        found = {"tests": len(suite.findall("testcase"))}
        for name, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            found[name] = len(suite.findall(f"testcase/{outcome}"))
        assert counts(suite) == found


def test_every_status_has_its_outcome() -> None:
    root = rendered([result(f"op{number}", status) for number, status in enumerate(Status)])
    outcomes = {
        one[1].get("type") if len(one) > 1 else None: one[1].tag if len(one) > 1 else None for one in root[0][1:]
    }
    assert outcomes == {
        None: None,
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
        (lambda root: root[0].append(root[0][1]), "unique"),
        (lambda root: root.append(root[0]), "unique"),
    ],
    ids=["no properties", "no number", "no count", "no time", "unknown outcome", "case twice", "suite twice"],
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
    told = properties(
        case(rendered([result("x", Status.PASSED, *found)]), "check_output_dtype-x-emulated-cuda-float16")
    )
    assert told["ratio"] == "1.5"
    assert told["threshold"] == "2.0"
    assert told["steps_skipped"] == "3"
    assert told["scale"] == "32768.0"
    assert "scale" not in properties(case(rendered(), "check_error-mm-cpu-float16"))


def test_each_suite_says_where_it_ran_and_whether_to_the_end() -> None:
    environment = ENVIRONMENT | {"devices": [{"name": "H100"}], "seeds": "from names"}
    suites = {suite.get("name"): properties(suite) for suite in rendered(environment=environment, complete=False)}
    assert {name: told["device"] for name, told in suites.items()} == {
        "cpu-float16": "CPU",
        "cuda-float16": "H100",
        "emulated-cuda-float16": "CPU, emulated",
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
    [suite] = ET.parse(file).getroot()
    assert counts(suite) == {"tests": 4, "failures": 1, "errors": 1, "skipped": 1}
