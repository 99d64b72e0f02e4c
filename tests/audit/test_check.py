"""An audit as a check of the suite: the same rules, run by `measure`, which fails on errors alone."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.audit import AuditCase
from amp_checks.audit.rules import RULES
from amp_checks.core import Status
from amp_checks.families.audit.cases import CASES
from amp_checks.families.audit.checks import check_training_step, checks_for
from amp_checks.records import fixtures
from amp_checks.suite.measure import measure
from amp_checks.torch_api.patching import Patches

sys.path.insert(0, str(fixtures.fixture("audit")))


@pytest.mark.parametrize("backend", ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"])
def test_reference_program_passes(backend: str) -> None:
    for case in CASES:
        assert list(checks_for(case)) == [check_training_step]
        result = measure(check_training_step, case, backends.backend(backend))
        assert result.status is Status.PASSED, result.describe()
        assert {finding.subject.split()[0] for finding in result.findings} >= set(RULES) - {
            "initial-loss-scale-unsuitable"
        }


@pytest.mark.parametrize("name", ["clip_norm_of_scaled", "zero_grad_forgotten", "squares_overflow"])
def test_faulty_program_fails_and_says_where(name: str) -> None:
    for module in ("loops_protocol", "loops_values"):
        importlib.import_module(module)
    pair = next(one for one in importlib.import_module("audit_pairs").PAIRS if one.id == name)
    result = measure(
        check_training_step, AuditCase(id=name, build=pair.twin(fault=True)), backends.backend("cpu-float16")
    )
    assert result.status is Status.FAILED
    failed = [finding for finding in result.failures if finding.subject.startswith(pair.rule)]
    assert failed
    assert any(f":{line}" in finding.subject for finding in failed for line in pair.lines())
    assert "remedy:" in failed[0].why


def test_warning_alone_passes() -> None:
    importlib.import_module("loops_steps")
    pair = next(one for one in importlib.import_module("audit_pairs").PAIRS if one.id == "scheduler_steps_always")
    result = measure(
        check_training_step, AuditCase(id="s", build=pair.twin(fault=True)), backends.backend("cpu-float16")
    )
    assert result.status is Status.PASSED
    assert any(finding.subject.startswith("scheduler-stepped-on-skipped-step") for finding in result.findings)


def test_a_class_method_written_in_c_is_watched_and_given_back() -> None:
    """As ``torch.autograd.Function.apply`` is one from torch 2.15 on."""

    class Watched(dict[str, None]):
        fromkeys = vars(dict)["fromkeys"]

    seen = []

    def tell(original: Any) -> Any:
        def replacement(cls: type, *args: Any) -> Any:
            seen.append(cls)
            return original(cls, *args)

        return replacement

    with Patches() as patches:
        patches.replace(Watched, "fromkeys", tell)
        assert (type(Watched.fromkeys("ab")), Watched.fromkeys("ab")) == (Watched, {"a": None, "b": None})
    assert (seen, Watched.fromkeys("a")) == ([Watched, Watched], {"a": None})
