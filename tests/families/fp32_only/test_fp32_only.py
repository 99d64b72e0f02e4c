from __future__ import annotations

import dataclasses

import pytest
import torch

from amp_checks import backends, core
from amp_checks.core import Status, SuiteError
from amp_checks.families.fp32_only import checks, record
from amp_checks.families.fp32_only.cases import CASES, EXCEPTIONS, FORCED, Fp32OnlyCase, Input, RecordCase
from amp_checks.records import low_precision
from amp_checks.records.low_precision import Kind, Meets, Outcome, Seen
from amp_checks.suite.measure import measure

CPU = backends.backend("cpu-float16")
EMULATED = backends.backend("emulated-cuda-float16")


def row(name: str) -> Fp32OnlyCase:
    return next(case for case in FORCED if case.id == name)


@pytest.mark.parametrize("name", ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "cuda-float16"])
def test_every_backend_has_a_hundred_ops_at_least(name: str) -> None:
    backend = backends.backend(name)

    assert sum(case.lacks(backend) != "" for case in FORCED if not case.compiled) >= 100


def test_a_device_without_a_record_has_no_rows() -> None:
    assert not any(case.runs_on(backends.backend("emulated-xpu-float16")) for case in CASES)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_supported_op_is_not_declared(device: str) -> None:
    assert checks.declaration("mm", device, "float16") == "supported"


def test_an_op_that_runs_in_float16_fails_the_check_on_a_real_device() -> None:
    supported = dataclasses.replace(row("linalg.inv"), declared="mm", op=torch.mm, inputs=(Input(shape=(4, 4)),) * 2)
    result = measure(checks.check_low_precision_call_raises, supported, CPU)

    assert result.status is Status.FAILED
    assert result.failures[0].actual == "gives float16"


def test_an_op_whose_backward_alone_raises_is_told_from_one_that_raises() -> None:
    result = measure(checks.check_low_precision_call_raises, row("special.i1"), CPU)

    assert result.status is Status.PASSED
    assert result.findings[0].actual == "raises in backward"


def test_an_op_that_fails_for_another_reason_is_not_taken_for_an_unsupported_one() -> None:
    def typo(x: torch.Tensor) -> torch.Tensor:
        return x.no_such_method()  # type: ignore[attr-defined, no-any-return]

    result = measure(checks.check_low_precision_call_raises, dataclasses.replace(row("linalg.inv"), op=typo), CPU)

    assert result.status is Status.FAILED
    assert result.failures[0].actual == "AttributeError"


def test_an_error_that_is_not_about_dtypes_is_no_lack_of_one() -> None:
    def shapes(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x[:3])

    result = measure(checks.check_low_precision_call_raises, dataclasses.replace(row("linalg.inv"), op=shapes), CPU)

    assert result.status is Status.FAILED
    assert result.failures[0].actual == "RuntimeError"


def test_an_emulated_device_declares_and_does_not_run() -> None:
    result = measure(checks.check_low_precision_call_raises, row("linalg.inv"), EMULATED)

    assert result.status is Status.PASSED
    assert result.findings[0].subject.startswith("declared, not run: ")


def test_an_op_that_is_not_declared_fails_on_an_emulated_device() -> None:
    undeclared = dataclasses.replace(row("linalg.inv"), declared="mm")
    result = measure(checks.check_low_precision_call_raises, undeclared, EMULATED)

    assert result.status is Status.FAILED


def test_an_output_that_is_not_finite_is_found() -> None:
    infinite = dataclasses.replace(row("linalg.inv"), op=lambda x: torch.linalg.inv(x) / 0.0)
    result = measure(checks.check_forced_fp32_output, infinite, CPU)

    assert [finding.subject for finding in result.failures] == ["output[0] is finite"]


def test_an_unknown_kind_of_input_is_an_error_that_names_those_there_are() -> None:
    odd = dataclasses.replace(row("linalg.inv"), inputs=(Input(shape=(2, 2), kind="odd"),))
    result = measure(checks.check_forced_fp32_output, odd, CPU)

    assert result.status is Status.ERROR
    assert "unknown kind of input 'odd'; there are normal, unit" in result.message


@pytest.mark.parametrize("device", sorted(EXCEPTIONS))
def test_every_exception_has_its_reason_and_no_row(device: str) -> None:
    for name, reason in EXCEPTIONS[device].items():
        assert len(reason) > 20
        assert all(case.declared != name for case in FORCED)


def seen(name: str, forward: Outcome | None) -> Seen:
    return Seen(
        op=name, forward=forward, backward=None, declared_forward=True, declared_backward=None, meets=Meets.ERROR
    )


def run_again(monkeypatch: pytest.MonkeyPatch, now: Seen | None) -> core.Result:
    """The check of the record, as if `linalg.inv` alone were recorded, and this were seen of it now."""
    raises = seen("linalg.inv", Outcome(kind=Kind.RAISES, count=1, of=1))
    recorded = low_precision.Found(
        torch="2.13.0", machine="here", ran=True, looked_at=1, ops={"float16": {"linalg.inv": raises}, "bfloat16": {}}
    )
    ops = {"float16": {} if now is None else {now.op: now}, "bfloat16": {}}
    monkeypatch.setattr(low_precision, "record_for", lambda version, device: recorded)
    monkeypatch.setattr(record, "run_again", lambda device, ops_run: dataclasses.replace(recorded, ops=ops))
    return measure(record.check_record_holds, RecordCase(id="record-run-again", full=True), CPU)


def test_a_record_that_holds_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    same = seen("linalg.inv", Outcome(kind=Kind.RAISES, count=1, of=1))

    assert run_again(monkeypatch, same).status is Status.PASSED


def test_a_recorded_op_that_runs_now_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_again(monkeypatch, None)

    assert [finding.subject for finding in result.failures] == ["linalg.inv: what of it lacks float16"]


def test_an_op_that_raises_now_and_is_not_recorded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_again(monkeypatch, seen("new_op", Outcome(kind=Kind.RAISES, count=1, of=1)))

    assert "new_op: what of it lacks float16" in [finding.subject for finding in result.failures]


def test_the_record_cannot_be_run_again_without_expecttest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = measure(record.check_record_holds, RecordCase(id="record-run-again", full=True), CPU)

    assert result.status is Status.ERROR
    assert "needs expecttest" in result.message


def test_a_suite_without_a_record_of_a_device_says_which_there_are() -> None:
    with pytest.raises(SuiteError, match="no record of what 'xpu' runs in 16 bits; there are records of cpu, cuda"):
        low_precision.record_for(torch.__version__, "xpu")
