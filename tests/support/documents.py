"""Results documents made for tests of reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from amp_checks.core import Finding, Result, Status, bounded, exact
from amp_checks.report.document import AUDITS, Document
from amp_checks.report.json_format import as_values
from amp_checks.report.values import encode

ENVIRONMENT: dict[str, Any] = {
    "torch": "2.13.0",
    "torch_cuda": None,
    "devices": [],
    "driver": None,
    "python": "3.11.7",
    "switches": {"cudnn.allow_tf32": True},
    "backends": {"cpu-float16": None, "cuda-float16": "torch was built without CUDA"},
}


def result(case: str, status: Status = Status.PASSED, *findings: Finding, **changed: Any) -> Result:
    """A result of a check of an op under emulation, unless ``changed`` says otherwise."""
    fields: dict[str, Any] = {
        "check": "check_output_dtype",
        "case": case,
        "family": "ops",
        "backend": "emulated-cuda-float16",
        "emulated": True,
        "status": status,
        "findings": findings,
    }
    return Result(**(fields | changed))


RIGHT = exact("output", actual="float16", expected="float16", why="rule")
WRONG = exact("output", actual="float32 <&> \x00 | pipe", expected="float16", why="rule\nof mm")
NAN = Finding(subject="error", actual=math.nan, expected=0.0, ratio=math.nan, threshold=1.0, why="unit")
ON_CPU = {"backend": "cpu-float16", "emulated": False}


def error(ratio: float, threshold: float = 2.0) -> Finding:
    """A measured error."""
    return bounded("error", ratio=ratio, threshold=threshold, why="in eps of the run dtype")


RESULTS = (
    result("mm", Status.PASSED, RIGHT),
    result("mm", Status.PASSED, error(0.7), check="check_error", seconds=2.5),
    result("mm", Status.PASSED, error(0.6), check="check_error", **ON_CPU),
    result("addmm", Status.FAILED, WRONG, NAN),
    result("addmm", Status.FAILED, error(4.5), check="check_error", **ON_CPU),
    result("bmm", Status.ERROR, message="the check itself raised KeyError", detail="Traceback <most recent>"),
    result("exp", Status.KNOWN_DEFECT, WRONG, message="exp-defect: exp is wrong"),
    result("stream", Status.NOT_EMULATED, message="torch.cuda.Stream cannot be emulated"),
    result("mm", Status.UNAVAILABLE, backend="cuda-float16", emulated=False, message="no device"),
    result(
        "rule-removed-mm",
        Status.PASSED,
        exact("check_output_dtype on mm", actual="caught", expected="caught", why="proof"),
        check="check_planted_fault_is_caught",
        family="planted",
    ),
)
CURVES = [
    {
        "item": "check_error-addmm-cpu-float16",
        "title": "reference model",
        "x": "step",
        "y": "training loss",
        "log": True,
        "lines": [
            {"name": "AMP, seed 0", "values": [4.0, 2.0, "nan", 1.0]},
            {"name": "FP32", "values": [4.0, 2.1, 1.5]},
        ],
        "band": {"name": "FP32, 5 seeds", "low": [3.0, 1.5, 1.0, 0.5], "high": [5.0, 3.0, 2.0, 1.5]},
        "marks": {"name": "skipped step", "at": [2]},
    }
]


def document(results: Sequence[Result] = RESULTS, **more: Any) -> Document:
    """A document of a run; ``more`` are its other fields."""
    return Document(results=results, **({"environment": ENVIRONMENT} | more))


def plain(made: Document) -> dict[str, Any]:
    """The document as JSON values, to be spoilt."""
    values: dict[str, Any] = encode(as_values(made))
    return values


def audits(found: Sequence[dict[str, Any]]) -> Document:
    """A document of audits alone."""
    return Document(schema=AUDITS, audits=found)


def audited() -> list[dict[str, Any]]:
    """Two audits of a user's step: one that found everything, one that found nothing."""
    sizes = {"dtype": "float16", "count": 100, "zeros": 4, "subnormal": 3, "saturated": 1, "least": 2.0**-24}
    sizes |= {"greatest": 65504.0, "bits_to_overflow": 0.0, "bits_to_zero": 0.0}
    calm = sizes | {"zeros": 0, "subnormal": 0, "saturated": 0, "bits_to_overflow": 14.2, "bits_to_zero": "inf"}
    found = {"rule": "loss-not-scaled", "message": "a <loss> is not scaled", "remedy": "scaler.scale(loss)", "step": 0}
    places: dict[str, Any] = {"where": "train.py:12", "module": "encoder.layer.0", "op": "aten::mm", "ignored": None}
    row = {"path": "encoder.layer.0", "ops": 12, "low_ops": 8, "casts": 2, "findings": ["loss-not-scaled"]}
    row |= {"activations": sizes, "backward": calm, "gradients": None, "scaled": None}
    one: dict[str, Any] = {"case": "mine.py:case", "backend": "emulated-cuda-float16", "emulated": True}
    diagnostics = [found | places | {"severity": severity} for severity in ("error", "warning", "note")]
    diagnostics.append(diagnostics[1] | {"ignored": "known since May"})
    full = one | {"diagnostics": diagnostics, "summary": {"iterations": "3"}}
    full["modules"] = [row, row | {"path": "head", "findings": []}]
    return [full, one | {"backend": "cpu-float16", "emulated": False, "diagnostics": [], "summary": {}, "modules": []}]
