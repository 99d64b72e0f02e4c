"""Results as JUnit XML that the strictest of its readers accepts: one suite per backend, one test case per item.

Each case carries the largest measured ratio with its threshold as properties, beside its backend, and the loss scale
and the skipped steps where it measured them; each suite where it ran and how its seeds come about. Schemas know
``<properties>`` of a suite alone, so those of a case are lines ``[[PROPERTY|name=value]]`` of its output. A known
defect is a skipped case with its reason: there is no word for an expected failure. What keeps the run as a whole from
a verdict is an error in a suite of its own, ``run``.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from amp_checks.core import Result, Status
from amp_checks.report import summary
from amp_checks.report.document import Document

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_TOLD = {"scale": re.compile(r"(loss )?scale\b"), "steps_skipped": re.compile("steps skipped of ")}
"""Property -> the beginning of the subject of the findings whose last value it gives."""


def _text(value: object) -> str:
    """The value as text that XML can hold."""
    return _NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value))


def _properties(result: Result) -> dict[str, object]:
    """What is worth reading of one result, by name."""
    facts: dict[str, object] = {
        "id": result.id,
        "backend": result.backend,
        "emulated": str(result.emulated).lower(),
        "findings": len(result.findings),
    }
    if result.findings:
        worst = max(result.findings, key=summary.share)
        facts |= {"ratio": worst.ratio, "threshold": worst.threshold, "subject": worst.subject}
    for name, pattern in _TOLD.items():
        if values := [finding.actual for finding in result.findings if pattern.match(finding.subject)]:
            facts[name] = values[-1]
    return facts


def _line(name: str, value: object) -> str:
    """A property of a case; it ends with the line, and at the first ``]]``."""
    return f"[[PROPERTY|{name}={_text(' '.join(str(value).split())).replace(']]', '] ]')}]]"


def _case(suite: ET.Element, result: Result) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        name=_text(f"{result.check}-{result.case}"),
        classname=_text(f"amp_checks.{result.family}.{result.backend}"),
        time=_seconds(result.seconds),
    )
    match result.status:
        case Status.PASSED:
            kind, message = "", ""
        case Status.FAILED:
            kind, message = "failure", result.failures[0].describe() if result.failures else result.message
        case Status.ERROR:
            kind, message = "error", result.message
        case _:
            kind, message = "skipped", f"{result.status}: {result.message}"
    if kind:
        ET.SubElement(case, kind, message=_text(message), type=_text(result.status)).text = _text(result.describe())
    ET.SubElement(case, "system-out").text = "\n".join(_line(*fact) for fact in _properties(result).items())


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"  # schemas know no more digits


def _device(result: Result, document: Document) -> str:
    """What ran the kernels of that result's backend."""
    if summary.kind_of(result) == "CUDA":
        return ", ".join(device["name"] for device in document.environment["devices"]) or "no CUDA device"
    return "CPU, emulated" if result.emulated else "CPU"


def _suite(root: ET.Element, name: str, document: Document, **more: str) -> ET.Element:
    suite = ET.SubElement(root, "testsuite", name=_text(name))
    facts: dict[str, object] = {
        fact: document.environment.get(fact) for fact in ("torch", "torch_cuda", "driver", "python", "seeds")
    }
    properties = ET.SubElement(suite, "properties")
    for fact, value in {**facts, **more, "complete": document.complete}.items():
        ET.SubElement(properties, "property", name=fact, value=_text(value))
    return suite


def render(document: Document) -> str:
    """The document as JUnit XML."""
    root = ET.Element("testsuites", name="amp_checks")
    for backend, mine in summary.grouped(document.results, lambda result: result.backend).items():
        suite = _suite(root, backend, document, device=_device(mine[0], document))
        for result in mine:
            _case(suite, result)
        suite.set("time", _seconds(sum(result.seconds for result in mine)))
    errors = document.problems or ([] if document.complete else ["the run did not finish"])
    if errors:
        suite = _suite(root, "run", document)
        case = ET.SubElement(suite, "testcase", name="conditions", classname="amp_checks.run", time=_seconds(0.0))
        written = ET.SubElement(case, "error", message=_text(errors[0]), type="conditions not met")
        written.text = _text("\n".join(errors))
        suite.set("time", _seconds(0.0))
    for suite in root:
        suite.set("tests", str(len(suite.findall("testcase"))))
        for count, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(count, str(len(suite.findall(f"testcase/{outcome}"))))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
