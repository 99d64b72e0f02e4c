"""What follows from a fault is told as that, and two faults at once are two errors."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Set as AbstractSet

import pytest
import torch
from audited_loops import CPU, report_on
from torch import nn

from amp_checks.audit import AuditCase, Report, Severity, Training, audit
from amp_checks.audit.ignore import Ignored
from amp_checks.audit.report import as_json, text
from amp_checks.report import audits

FAULTS = {
    "clips before unscale_": "scaled-gradients-modified",
    "steps behind the scaler's back": "scaler-bypassed",
    "scales one of two losses": "loss-not-scaled",
    "scales a loss twice": "loss-scaled-twice",
    "never zeroes": "zero-grad-missing",
    "sums in 16 bits": "loss-differs",
    "data beyond float16": "loss-not-finite",
    "backward off by 5 % in 16 bits": "gradients-off-scale",
    "decays weights in a hook": "gradients-depend-on-loss-scale",
    "replaces what is not finite": "overflow-hidden",
}
"""Faults of the program below, and the rule that names each."""


def _program(device: str, dtype: torch.dtype, faults: AbstractSet[str]) -> Training:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    batches = [torch.randn(64, 8).to(device) for _ in range(4)]
    decay = 0.5 if "decays weights in a hook" in faults else 0.0
    weight = model.get_parameter("0.weight")
    weight.register_hook(lambda gradient: gradient + decay * weight.detach())
    if "data beyond float16" in faults:
        batches[0][0] = 1e9

    def step(batch: torch.Tensor) -> None:
        if "never zeroes" not in faults:
            optimizer.zero_grad()
        with torch.autocast(device, dtype):
            output = model(batch)
            output = output if "sums in 16 bits" in faults else output.float()
            mean = ((output + 64.0).sum() - 64.0 * output.numel()).float() / output.numel()
            output = output.float()
            if "backward off by 5 % in 16 bits" in faults and torch.is_autocast_enabled(device):
                output.register_hook(lambda gradient: gradient * 1.05)
            loss, other = (output - 0.3).square().mean() + 20 * mean.detach().square(), output.square().mean() / 8
        scaled = scaler.scale(loss)
        if "scales a loss twice" in faults:
            scaled = scaler.scale(scaled)
        scaled.backward(retain_graph=True)
        (other if "scales one of two losses" in faults else scaler.scale(other)).backward()
        _replace_what_is_not_finite(model if "replaces what is not finite" in faults else nn.Identity())
        if "clips before unscale_" not in faults:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        if "steps behind the scaler's back" in faults:
            optimizer.step()
        else:
            scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=batches, step=step)


def _replace_what_is_not_finite(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)


def _audited(*faults: str) -> Report:
    return report_on(lambda device, dtype: _program(device, dtype, set(faults)), id="two faults")


def _errors(report: Report) -> list[str]:
    return [one.rule for one in report.diagnostics if one.severity is Severity.ERROR]


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_one_error(fault: str) -> None:
    report = _audited(fault)
    assert _errors(report) == [FAULTS[fault]], text(report)


def test_no_fault_is_no_finding() -> None:
    assert [one.rule for one in _audited().diagnostics if one.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("faults", list(itertools.combinations(FAULTS, 2)), ids=" and ".join)
def test_two_faults_are_two_errors(faults: tuple[str, str]) -> None:
    report = _audited(*faults)
    assert len(_errors(report)) >= 2, text(report)
    # What replaces scaled gradients changes them: the two findings share a line, and one of them follows.
    lines = {one.where for one in report.diagnostics if one.severity is Severity.ERROR}
    told = {one.rule for one in report.diagnostics if one.where in lines}
    assert {FAULTS[fault] for fault in faults} <= told, text(report)


def _turned(times: float) -> Report:
    """Gradients that AMP turns by an eighth of a circle, and that are ``times`` too small."""

    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 4, bias=False).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                output = model(batch).float()
                if torch.is_autocast_enabled(device):
                    output.register_hook(lambda gradient: torch.stack([gradient, -gradient.roll(1, 1)]).sum(0) / 2**0.5)
            scaler.scale((output - 0.3).square().mean()).backward()
            scaler.unscale_(optimizer)
            if model.weight.grad is not None and scaler.is_enabled():
                model.weight.grad /= times
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, batches=[torch.randn(64, 8).to(device) for _ in range(4)], step=step)

    return report_on(case, id="turned")


def test_gradients_of_a_wrong_size_are_told_wherever_they_point() -> None:
    (told,) = [one for one in _turned(256.0).diagnostics if one.rule == "gradients-off-scale"]
    assert told.severity is Severity.ERROR
    assert re.fullmatch(r"all gradients are [23]\d\d times too small, and point elsewhere", told.message), told.message


def test_gradients_that_only_point_elsewhere_are_not_off_scale() -> None:
    assert _errors(_turned(1.0)) == ["gradients-differ"]


def test_what_follows_is_shown_below_its_cause_in_every_format() -> None:
    report = _audited("clips before unscale_")
    rules = [(one.rule, one.follows_from) for one in report.diagnostics if one.rule != "initial-loss-scale-unsuitable"]
    cause = "scaled-gradients-modified"
    assert rules == [(cause, None), ("gradients-differ", cause), ("gradients-off-scale", cause)]
    lines = text(report).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"  ERROR {cause}"))
    assert lines[first + 2].strip().startswith("remedy:")
    assert lines[first + 3].startswith(f"    - gradients-differ follows from {cause}, and goes away with it")
    assert "1 errors, 0 warnings" in lines[-1]
    document = as_json(report)
    assert [one["follows_from"] for one in document["diagnostics"]][:3] == [None, cause, cause]
    arranged = audits.arrange([document])[0]
    assert arranged.verdict.startswith("1 error, 0 warnings")
    old = {name: value for name, value in document["diagnostics"][0].items() if name != "follows_from"}
    assert audits.arrange([document | {"diagnostics": [old]}])[0].findings[0]["follows_from"] is None


def test_ignored_warning_does_not_take_an_error_with_it() -> None:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = model(batch).float().square().mean() * 1e-6
            loss.backward()
            optimizer.step()

        return Training(model=model, batches=[torch.randn(16, 8).to(device)] * 2, step=step)

    row = AuditCase(id="small loss", build=case)
    report = audit(row, CPU)
    assert (report.diagnostics[0].rule, report.diagnostics[0].severity) == ("loss-scaling-missing", Severity.ERROR)
    assert {one.follows_from for one in report.diagnostics[1:]} == {"loss-scaling-missing"}
    entry = Ignored(rule="loss-scaling-missing", place="*", until=datetime.date(2999, 1, 1), reason="known")
    assert [one.severity for one in audit(row, CPU, ignored=(entry,)).failures()] == [Severity.ERROR]
