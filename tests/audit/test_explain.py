"""What a rule is about, on the command line and on the page of rules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from amp_checks.audit import explain
from amp_checks.audit.rules import IDS
from amp_checks.cli import entry

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_every_id_that_a_finding_may_have_is_explained() -> None:
    assert set(explain.pages()) == IDS
    for one in explain.pages().values():
        assert one.why
        assert one.remedy
        if one.rule != "training-differs":  # of trainings over many seeds
            (function,) = ast.parse(one.program).body
            assert isinstance(function, ast.FunctionDef)


def test_the_page_of_rules_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == explain.markdown(), "python -m amp_checks.audit.explain > docs/rules.md"


def test_the_command_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["audit", "--explain", "gradients-unscaled-mid-accumulation"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("gradients-unscaled-mid-accumulation (error)")
    assert "Remedy: call scaler.unscale_(optimizer) once, after the last micro-batch" in shown
    assert "# fault" in shown


def test_a_rule_that_there_is_not_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["audit", "--explain", "loss-not-scale"]) == 4
    assert "unknown rule 'loss-not-scale'; there are" in capsys.readouterr().err
