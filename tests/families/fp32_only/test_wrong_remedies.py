"""Every cell of the matrix of wrong remedies: those that must fail are caught, and the others are not."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from amp_checks import backends
from amp_checks.core import Status
from amp_checks.families.fp32_only import checks
from amp_checks.families.fp32_only.cases import FORCED, Fp32OnlyCase
from amp_checks.families.fp32_only.mutants import remedies
from amp_checks.records import fixtures, low_precision
from amp_checks.suite.measure import measure
from amp_checks.torch_api.backend import Backend

DEFAULT = ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")


@functools.cache
def recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(fixtures.fixture("fp32_only/wrong_remedies.json").read_text(encoding="utf-8"))
    return document


def verdicts(row: Fp32OnlyCase, backend: Backend) -> dict[str, str]:
    version = low_precision.record_for(torch.__version__, backend.device_type).torch
    found: dict[str, str] = recorded()["torch"][version][backend.device_type][row.id]
    return found


def rows(backend: Backend) -> list[Fp32OnlyCase]:
    return [row for row in FORCED if not row.compiled and row.runs_on(backend)]


@pytest.mark.parametrize("name", DEFAULT)
@pytest.mark.parametrize("remedy", remedies.WRONG)
def test_a_wrong_remedy_is_caught_for_the_ops_that_it_fails_for_and_for_no_other(remedy: str, name: str) -> None:
    backend = backends.backend(name)
    wrong = []
    for row in rows(backend):
        verdict = verdicts(row, backend)[remedy]
        with remedies.planted(remedies.WRONG[remedy])(backend) as faulty:
            result = measure(checks.check_forced_fp32_output, row, faulty)
        if result.status is not (Status.FAILED if verdict.startswith("fails: ") else Status.PASSED):
            wrong.append(f"{row.id} ({verdict}): {result.describe()}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", DEFAULT)
def test_every_row_has_a_verdict_on_every_wrong_remedy(name: str) -> None:
    backend = backends.backend(name)

    for row in rows(backend):
        found = verdicts(row, backend)
        assert set(found) == set(remedies.WRONG)
        assert all(verdict.startswith(("fails: ", "indifferent")) for verdict in found.values())


def test_every_wrong_remedy_fails_for_some_op_on_every_backend() -> None:
    for name in DEFAULT:
        backend = backends.backend(name)
        for remedy in remedies.WRONG:
            assert any(verdicts(row, backend)[remedy].startswith("fails: ") for row in rows(backend))


def script() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "fp32_only_wrong_remedies.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_matrix_is_what_its_rule_works_out() -> None:
    assert script().matrix() == recorded()
