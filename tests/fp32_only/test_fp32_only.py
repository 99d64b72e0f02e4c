from __future__ import annotations

import dataclasses

import pytest
import torch

from amp_checks import backends, core
from amp_checks.cases.fp32_only import CASES, Fp32OnlyCase, Input
from amp_checks.checks import fp32_only as checks
from amp_checks.core import Status, SuiteError

CPU = backends.backend("cpu-float16")
EMULATED = backends.backend("emulated-cuda-float16")


def row(name: str) -> Fp32OnlyCase:
    return next(case for case in CASES if case.id == name)


@pytest.mark.parametrize("name", ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "cuda-float16"])
def test_every_backend_has_ten_ops_at_least(name: str) -> None:
    backend = backends.backend(name)

    assert sum(case.runs_on(backend) for case in CASES) >= 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_row_is_declared_where_it_says_so(case: Fp32OnlyCase) -> None:
    for device in case.unsupported_on:
        for dtype in ("float16", "bfloat16"):
            assert checks.declaration(case.declared, device, dtype) == "unsupported"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_supported_op_is_not_declared(device: str) -> None:
    assert checks.declaration("mm", device, "float16") == "supported"


def test_an_op_that_runs_in_float16_fails_the_check_on_a_real_device() -> None:
    supported = dataclasses.replace(row("linalg.inv"), declared="mm", op=torch.mm, inputs=(Input(shape=(4, 4)),) * 2)
    result = core.measure(checks.check_low_precision_call_raises, supported, CPU)

    assert result.status is Status.FAILED
    assert result.failures[0].actual == "gives float16"


def test_an_op_that_fails_for_another_reason_is_not_taken_for_an_unsupported_one() -> None:
    def typo(x: torch.Tensor) -> torch.Tensor:
        return x.no_such_method()  # type: ignore[attr-defined, no-any-return]

    result = core.measure(checks.check_low_precision_call_raises, dataclasses.replace(row("linalg.inv"), op=typo), CPU)

    assert result.status is Status.FAILED
    assert result.failures[0].actual == "AttributeError"


def test_an_emulated_device_declares_and_does_not_run() -> None:
    result = core.measure(checks.check_low_precision_call_raises, row("linalg.inv"), EMULATED)

    assert result.status is Status.PASSED
    assert result.findings[0].subject.startswith("declared, not run: ")


def test_an_op_that_is_not_declared_fails_on_an_emulated_device() -> None:
    undeclared = dataclasses.replace(row("linalg.inv"), declared="mm")
    result = core.measure(checks.check_low_precision_call_raises, undeclared, EMULATED)

    assert result.status is Status.FAILED


def test_an_output_that_is_not_finite_is_found() -> None:
    infinite = dataclasses.replace(row("linalg.inv"), op=lambda x: torch.linalg.inv(x) / 0.0)
    result = core.measure(checks.check_forced_fp32_output, infinite, CPU)

    assert [finding.subject for finding in result.failures] == ["output[0] is finite"]


def test_an_unrecorded_device_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SuiteError, match="no record of 'xpu': record it"):
        checks.declaration("linalg.inv", "xpu", "float16")


def test_an_unknown_kind_of_input_is_an_error_that_names_those_there_are() -> None:
    odd = dataclasses.replace(row("linalg.inv"), inputs=(Input(shape=(2, 2), kind="odd"),))
    result = core.measure(checks.check_forced_fp32_output, odd, CPU)

    assert result.status is Status.ERROR
    assert "unknown kind of input 'odd'; there are normal, unit" in result.message
