"""Scripts audited from Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from script_audits import SCRIPTS, contents

import amp_checks
from amp_checks.core import SuiteError, UsageError


def test_a_healthy_script_raises_nothing() -> None:
    before = contents(SCRIPTS)
    report = amp_checks.audit_script("configured.py", "model.depth=1", cwd=SCRIPTS)
    report.raise_for_findings("warning")
    assert report.diagnostics == ()
    assert report.emulated
    assert contents(SCRIPTS) == before


def test_a_finding_is_raised_with_the_whole_report() -> None:
    report = amp_checks.audit_script("gan.py", cwd=SCRIPTS, environment={"FAULT": "not-scaled"}, quick=True, steps=2)
    with pytest.raises(AssertionError, match=r"ERROR loss-not-scaled  \[gan.py:\d+"):
        report.raise_for_findings()


def test_what_is_a_warning_is_raised_where_that_is_asked(tmp_path: Path) -> None:
    command = ("configured.py", "trainer.fault=scheduled-anyway")
    report = amp_checks.audit_script(*command, cwd=SCRIPTS)
    report.raise_for_findings()
    with pytest.raises(AssertionError):
        report.raise_for_findings("warning")
    known = tmp_path / "known.txt"
    known.write_text("scheduler-stepped-on-skipped-step | configured.py | 2999-01-01 | it is one step\n")
    amp_checks.audit_script(*command, cwd=SCRIPTS, ignore=known).raise_for_findings("warning")


def test_a_module_and_a_backend_are_named() -> None:
    report = amp_checks.audit_script("package", module=True, cwd=SCRIPTS, backend="emulated-cuda-bfloat16", quick=True)
    assert report.backend == "emulated-cuda-bfloat16"


BAD: dict[str, tuple[dict[str, str], str]] = {
    "no script": ({"script": "nothing.py"}, "there is no script nothing.py"),
    "no backend": ({"script": "plain.py", "backend": "cuda"}, "unknown backend 'cuda'"),
    "no device": ({"script": "plain.py", "backend": "cuda-float16"}, "cuda-float16 cannot be had here"),
    "no list": ({"script": "plain.py", "ignore": "nothing.txt"}, "nothing.txt"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message(name: str) -> None:
    arguments, message = BAD[name]
    with pytest.raises(UsageError, match=re.escape(message)):
        amp_checks.audit_script(cwd=SCRIPTS, **arguments)


def test_an_audit_that_dies_says_with_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SuiteError, match="ended with 7"):
        amp_checks.audit_script("plain.py", cwd=SCRIPTS)
