"""A run of the suite itself with a fault planted: every report says so, and says the same."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from amp_checks import backends
from amp_checks.core import UsageError
from amp_checks.report import FORMATS
from amp_checks.suite import planting

BACKEND = "emulated-cuda-float16"


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_every_report_tells_a_planted_fault(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    xmlschema = pytest.importorskip("xmlschema", reason="a schema is checked by the xmlschema package")
    pytest.importorskip("jinja2", reason="the optional extra `report` is not installed")
    pytest.importorskip("matplotlib", reason="the optional extra `report` is not installed")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "step.md"))
    [mutant] = [one for one in planting.mutants("ops") if one.id == "rule-removed-mm"]
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-backend", BACKEND, "--amp-family", "ops")
    with mutant.plant(backends.backend(BACKEND)):
        done = pytester.runpytest_inprocess(*fixed, "-k", "mm-emulated", "--amp-report-dir", "report")
    assert done.ret == 1

    folder = pytester.path / "report"
    content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    failed = sorted(entry["id"] for entry in content["results"] if entry["status"] == "failed")
    of_spellings = {f"check_spelling_is_cast-torch.{name}-{BACKEND}" for name in ("mm", "Tensor.mm")}
    assert {f"{check}-mm-{BACKEND}" for check in mutant.killed_by} | of_spellings == set(failed)
    assert any(entry["status"] == "passed" and entry["case"] == "bmm" for entry in content["results"])

    xmlschema.validate(str(folder / "junit.xml"), str(Path(__file__).with_name("junit.xsd")))
    cases = ET.parse(folder / "junit.xml").getroot().iter("testcase")
    told = [one.findtext("system-out", "").splitlines()[0] for one in cases if one.find("failure") is not None]
    assert sorted(told) == [f"[[PROPERTY|id={name}]]" for name in failed]

    again = [f"amp-checks run --item {name}" for name in failed]
    markdown = (folder / "summary.md").read_text(encoding="utf-8")
    assert markdown.startswith(f"## amp_checks: AMP IS WRONG: {len(failed)} of ")
    assert markdown == (pytester.path / "step.md").read_text(encoding="utf-8")
    html = (folder / FORMATS["html"].file).read_text(encoding="utf-8")
    annotations = [line for line in done.outlines if line.startswith("::error ")]
    assert len(annotations) == len(failed)
    for command in again:
        assert f"`{command}`" in markdown
        assert f"<code>{command}</code>" in html
        assert any(line.endswith(command) for line in annotations)
    assert html.count('<article class="card failed"') == len(failed)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_fault_planted_by_name_makes_the_run_fail_and_is_named(workers: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "amp_checks", "run", "--plant", "rule-removed-mm", "--backend", BACKEND]
    done = subprocess.run(
        [*command, "-n", workers, "--report-dir", "report"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AMP IS WRONG: 4 of 8 checks failed" in done.stdout
    assert "planted on purpose (--plant rule-removed-mm): mm has no rule" in done.stdout
    assert f"run it again: amp-checks run --plant rule-removed-mm --backend {BACKEND}" in done.stdout
    content = json.loads((tmp_path / "report" / "results.json").read_text(encoding="utf-8"))
    assert content["selection"]["plant"] == "rule-removed-mm"
    assert "planted on purpose" in content["errors"][0]
    again = f"amp-checks run --plant rule-removed-mm --backend {BACKEND}"
    summary = (tmp_path / "report" / "summary.md").read_text(encoding="utf-8")
    assert "planted on purpose" in summary
    assert summary.count(f"Run it again: `{again}`") == 4
    assert "--item" not in summary
    if FORMATS["html"].lacks() is None:
        assert (tmp_path / "report" / "report.html").read_text(encoding="utf-8").count(f"<code>{again}</code>") == 4


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'rule-removed-mm'"):
        planting.mutant("rule-remved-mm")
