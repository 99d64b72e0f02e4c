"""When the error of a first loss is a finding: losses that cancel, programs that magnify, what FP32 gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, Training, audit
from amp_checks.audit.evidence import Evidence
from amp_checks.audit.probes import values
from amp_checks.audit.probes.values import ValueRecorder
from amp_checks.audit.runs.perturbation import PERTURBED_RUNS, Perturbation
from amp_checks.audit.runs.plan import AMP, FP32, Runs
from amp_checks.torch_api.numerics import SALT

Loss = Callable[[nn.Module, Any], torch.Tensor]
SALTS = [str(number) for number in range(12)]
BACKENDS = ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"]


def _critic(device: str) -> nn.Module:
    hidden = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32))
    return nn.Sequential(hidden, nn.GELU(), nn.Linear(32, 1)).to(device)


def _scores(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = model(inputs)
    return scores.float()


def _difference(model: nn.Module, batch: Any) -> torch.Tensor:
    return _scores(model, batch[0]).mean() - _scores(model, batch[1]).mean()


def _signed(model: nn.Module, batch: Any) -> torch.Tensor:
    return _scores(model, batch[0]).mean()


def _square(model: nn.Module, batch: Any) -> torch.Tensor:
    """Near zero, all its gradients have the error of the mean as a common factor."""
    assert isinstance(model, nn.Sequential)
    return _scores(model[2], torch.cat(batch[:2], 1)).mean().square()


def _policy(model: nn.Module, batch: Any) -> torch.Tensor:
    chances = torch.cat([_scores(model, batch[0]), _scores(model, batch[1])], 1).log_softmax(-1)
    loss: torch.Tensor = -(chances[:, 0] * batch[2]).mean()
    return loss


def _hopeless(model: nn.Module, batch: Any) -> torch.Tensor:
    """A variance around 2000 as a difference of squares: float32 has no digit of it."""
    pixels = _scores(model, batch[0]).view(4, 16) + 2000.0
    loss: torch.Tensor = ((pixels * pixels).mean(0) - pixels.mean(0).square()).square().mean()
    return loss


def _case(loss: Loss, **more: Any) -> AuditCase:
    def build(device: str, dtype: torch.dtype) -> dict[str, Any]:
        batches = [[torch.randn(64, 16).to(device), torch.randn(64, 16).to(device), torch.randn(64).to(device)]]
        return {"model": _critic(device), "batches": batches, "loss": loss, **more}

    return AuditCase(id=loss.__name__, build=build)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loss", [_difference, _signed, _square, _policy], ids=lambda loss: loss.__name__)
def test_what_cancels_is_judged_by_what_it_is_made_of(
    loss: Loss, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for salt in SALTS:
        monkeypatch.setenv(SALT, salt)
        found = audit(_case(loss), backends.backend(backend)).diagnostics
        assert [one.message for one in found if one.severity is not Severity.NOTE] == [], salt


def test_a_perturbation_moves_parameters_by_half_a_rounding_error_at_most() -> None:
    moved = []
    for number in (0, 1, 0):
        training = Training(model=nn.Linear(64, 64, dtype=torch.float64), batches=[], step=print)
        weight = training.named_parameters()["weight"]
        before = weight.detach().clone()
        Perturbation(dtype=torch.bfloat16, seed=number).prepared(training)
        moved.append((weight.detach() / before - 1.0) / torch.finfo(torch.bfloat16).eps)
        assert 0.49 < moved[-1].abs().max().item() <= 0.5
        assert moved[-1].mean().abs().item() < 0.02
    torch.testing.assert_close(moved[0], moved[2])
    assert (moved[0] - moved[1]).abs().max().item() > 0.5


def test_only_what_errs_is_perturbed() -> None:
    def plain(model: nn.Module, batch: Any) -> torch.Tensor:
        return (_scores(model, batch[0]) - 1.0).square().mean()

    def turned(model: nn.Module, batch: Any) -> torch.Tensor:
        scores = _scores(model, batch[0])
        if torch.is_autocast_enabled("cpu"):
            scores.register_hook(lambda gradient: gradient * 1.05)
        return (scores - 1.0).square().mean()

    backend = backends.backend("cpu-bfloat16")
    assert Evidence(Runs(_case(plain), backend)).compared.perturbed == ()
    perturbed = Evidence(Runs(_case(turned), backend)).compared.perturbed
    assert len(perturbed) == PERTURBED_RUNS
    assert len({trace.losses[0] for trace in perturbed}) == PERTURBED_RUNS


def test_what_float32_gets_as_wrong_is_no_fault_of_amp(monkeypatch: pytest.MonkeyPatch) -> None:
    for salt in SALTS:
        monkeypatch.setenv(SALT, salt)
        found = audit(_case(_hopeless), backends.backend("cpu-bfloat16")).diagnostics
        assert "loss-differs" not in {one.rule for one in found}, salt


def _masked(mask: Callable[[torch.Tensor], torch.Tensor]) -> AuditCase:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores: torch.Tensor = model(batch[0])
        return mask(scores.view(16, 4)).softmax(-1).float()[:, 0].mean()

    return _case(loss)


MASK = torch.tensor([False, True, False, True])
MASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "where": lambda scores: torch.where(MASK, torch.finfo(scores.dtype).min, scores),
    "masked_fill": lambda scores: scores.masked_fill(MASK, torch.finfo(scores.dtype).min),
    "a product": lambda scores: scores + MASK.to(scores) * torch.finfo(scores.dtype).min,
}


@pytest.mark.parametrize("name", MASKS)
def test_a_constant_of_the_dtype_is_no_amplifier(name: str) -> None:
    runs = Runs(_masked(MASKS[name]), backends.backend("cpu-float16"))
    assert values.find(runs.recorded(AMP, ValueRecorder), runs.recorded(FP32, ValueRecorder)) is None
