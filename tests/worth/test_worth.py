"""The command, its record, its documents; the family's planted faults; the model of a device."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.cli import entry
from amp_checks.core import Status, UsageError
from amp_checks.families.worth.cases import CASES
from amp_checks.families.worth.mutants import MUTANTS
from amp_checks.report import FORMATS, reading
from amp_checks.report.document import WORTHS, Document
from amp_checks.report.json_format import as_values
from amp_checks.suite.planting import killers
from amp_checks.worth import devices, records
from amp_checks.worth.count import Op
from amp_checks.worth.report import as_json, text, worth
from amp_checks.worth.roofline import bound, seconds

A100 = devices.device("a100")


def counted() -> dict[str, Any]:
    return as_json(worth(CASES[0].case(), backends.backend("emulated-cuda-float16"), A100))


def product(**changed: Any) -> Op:
    fields: dict[str, Any] = {
        "name": "mm", "phase": "forward", "module": None, "where": None, "inputs": ("float16",), "output": "float16",
        "flops": 312 * 10**9, "bytes": 2039 * 10**3, "float32_bytes": 0, "region": "enabled",
    }  # fmt: skip
    return Op(**(fields | changed))


@pytest.mark.parametrize(
    ("changed", "expected", "by"),
    [
        ({}, 1e-3, "compute"),
        ({"odd": 65}, 2e-3, "compute"),
        ({"inputs": ("float32",)}, 16e-3, "compute"),
        ({"bytes": 2039 * 10**7}, 10e-3, "memory"),
        ({"flops": 2, "bytes": 8}, 5e-6, "launch"),
    ],
)
def test_a_roofline_gives_the_longest_of_three(changed: dict[str, Any], expected: float, by: str) -> None:
    op = product(**changed)
    assert seconds(op, A100) == pytest.approx(expected)
    assert bound(op, A100) == by


def test_tf32_is_another_baseline() -> None:
    op = product(inputs=("float32",))
    assert seconds(op, A100, tf32=True) == pytest.approx(2e-3)


def test_every_device_has_a_source_and_is_faster_in_16_bits() -> None:
    for one in devices.table().values():
        assert one.source
        assert one.peak("float16") > 3 * one.peak("float32")
        assert one.peak("float64") <= one.peak("float32")
    with pytest.raises(UsageError, match="a100"):
        devices.device("a10")


@pytest.mark.parametrize("backend", ["cpu-bfloat16", "emulated-cuda-float16"])
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.id)
def test_a_planted_fault_is_caught_by_the_checks_that_it_names(mutant: Any, backend: str) -> None:
    results = killers(mutant, backends.backend(backend))
    assert tuple(name for name, result in results.items() if result.status is Status.FAILED) == mutant.killed_by


def test_the_command_writes_text_json_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, page = tmp_path / "worth.json", tmp_path / "worth.html"
    arguments = ["worth", "--backend", "emulated-cuda-float16", "--device", "t4"]
    assert entry([*arguments, "--json", str(target), "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "on Tesla T4 by its peak figures (FP32 baseline: TF32 off, eager)" in shown
    document = reading.read(target)
    assert (document.schema, len(document.worths)) == (WORTHS, 2)
    html = page.read_text(encoding="utf-8")
    assert html.count("Roofline of") == 2
    assert "NVIDIA T4 Tensor Core GPU data sheet" in html
    assert entry([*arguments, "--against", str(target)]) == 0
    assert entry([*arguments, "--max-memory", "0.61"]) == 1
    assert "more than 0.61" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--device", "a10"],
        ["--rounds", "3"],
        ["--min-speedup", "-1"],
        ["--max-memory", "nan"],
        ["--against", "missing.json"],
        ["--time", "--backend", "emulated-cuda-float16"],
        ["missing.py"],
        ["missing.py:case"],
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert entry(["worth", *arguments]) == 4
    assert "amp-checks: error:" in capsys.readouterr().err


def test_a_record_shows_what_got_worse_and_nothing_else(tmp_path: Path) -> None:
    now = counted()
    path = tmp_path / "record.json"
    path.write_text(json.dumps(as_values(Document(schema=WORTHS, worths=[now]))), encoding="utf-8")
    record = records.load(path)
    assert records.worse([now], record) == []
    worse = copy.deepcopy(now)
    worse["saved_share"] *= 1.1
    worse["amp"]["cast_bytes"] *= 2
    worse["amp"]["low_flops"] //= 2
    found = records.worse([worse], record)
    assert len(found) == 3
    assert "50% of its FLOPs are in 16 bits, 100% in the record" in found[2]
    with pytest.raises(UsageError, match="none of the programs"):
        records.worse([{**now, "case": "another"}], record)


@pytest.mark.parametrize(("machine", "lines"), [("here", 1), ("elsewhere", 0)])
def test_times_are_compared_on_the_same_machine_alone(machine: str, lines: int) -> None:
    timing = {"machine": "here", "torch": "2", "baseline": "eager", "rounds": 15}
    before = counted() | {
        "timing": timing | {"speeds": [{"dtype": "float16", "speedup": 2.0, "low": 1.9, "high": 2.1}]}
    }
    now = before | {
        "timing": timing
        | {"machine": machine, "speeds": [{"dtype": "float16", "speedup": 1.0, "low": 0.9, "high": 1.1}]}
    }
    assert len(records.worse([now], {(now["case"], now["backend"]): before})) == lines


@pytest.mark.parametrize("content", ["[]", "{}", "no", '{"schema": "amp_checks/worths", "worths": [{}]}'])
def test_what_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError):
        records.load(path)


def test_a_page_of_results_has_a_section_of_it() -> None:
    page = FORMATS["html"].render(Document(schema=WORTHS, worths=[counted()]))
    assert "What AMP is worth: worth-reference-model under emulated-cuda-float16 (emulated)" in page
    assert "What emulated results do not say" in page


def test_a_step_that_raises_is_named() -> None:
    def case(device: str) -> dict[str, Any]:
        model = __import__("torch").nn.Linear(2, 3).to(device)
        return {"model": model, "batches": [1], "step": lambda _: 1 / 0}

    from amp_checks.audit.case import AuditCase

    with pytest.raises(UsageError, match="ZeroDivisionError"):
        worth(AuditCase(id="raises", build=case), backends.backend("cpu-bfloat16"), A100)


def test_text_says_what_was_counted() -> None:
    shown = text(worth(CASES[0].case(), backends.backend("cpu-bfloat16"), A100))
    assert "FLOPs of products: 1,048,576, 100% of them in 16 bits" in shown
    assert "kept for backward: 34,816 bfloat16, 16,384 float32 under AMP, 86,016 float32 in FP32: 0.60" in shown
