"""Results as JUnit XML, as CI systems read it: one suite per backend, one test case per item.

Each case carries the largest measured ratio with its threshold as properties, beside its backend, and the loss scale
and the skipped steps where it measured them; each suite where it ran and how its seeds come about. A known defect is a
skipped case with its reason: the schema has no word for an expected failure.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from amp_checks.core import Result, Status
from amp_checks.report import json_format, summary

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_TOLD = {"scale": re.compile(r"(loss )?scale\b"), "steps_skipped": re.compile("steps skipped of ")}
"""Property -> the beginning of the subject of the findings whose last value it gives."""


def _text(value: object) -> str:
    """The value as text that XML can hold."""
    return _NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value))


def _case(suite: ET.Element, result: Result) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        name=_text(f"{result.check}-{result.case}"),
        classname=_text(f"amp_checks.{result.family}.{result.backend}"),
        time=f"{result.seconds:.4f}",
    )
    properties = ET.SubElement(case, "properties")
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
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=name, value=_text(value))
    match result.status:
        case Status.PASSED:
            return
        case Status.FAILED:
            kind, message = "failure", result.failures[0].describe() if result.failures else result.message
        case Status.ERROR:
            kind, message = "error", result.message
        case _:
            kind, message = "skipped", f"{result.status}: {result.message}"
    ET.SubElement(case, kind, message=_text(message), type=_text(result.status)).text = _text(result.describe())


def _device(result: Result, environment: dict[str, Any]) -> str:
    """What ran the kernels of that result's backend."""
    if summary.kind_of(result) == "CUDA":
        return ", ".join(device["name"] for device in environment["devices"]) or "no CUDA device"
    return "CPU, emulated" if result.emulated else "CPU"


def render(content: dict[str, Any]) -> str:
    """The document as JUnit XML."""
    results = json_format.results_of(content)
    root = ET.Element("testsuites", name="amp_checks")
    for backend in sorted({result.backend for result in results}):
        mine = [result for result in results if result.backend == backend]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_text(backend),
            tests=str(len(mine)),
            failures=str(sum(r.status is Status.FAILED for r in mine)),
            errors=str(sum(r.status is Status.ERROR for r in mine)),
            skipped=str(sum(r.status not in (Status.PASSED, Status.FAILED, Status.ERROR) for r in mine)),
            time=f"{sum(r.seconds for r in mine):.4f}",
        )
        properties = ET.SubElement(suite, "properties")
        environment = content["environment"]
        facts = {name: environment.get(name) for name in ("torch", "torch_cuda", "driver", "python", "seeds")}
        facts["device"] = _device(mine[0], environment)
        for name, value in {**facts, "complete": content["complete"]}.items():
            ET.SubElement(properties, "property", name=name, value=_text(value))
        for result in mine:
            _case(suite, result)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
