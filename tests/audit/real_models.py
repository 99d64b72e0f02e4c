"""Real architectures: no crash, no false alarm; and a fault planted in one of their modules is placed on that module.

Needs torchvision, timm, transformers and diffusers, and is collected only where it is named: ``pytest
tests/audit/real_models.py`` (the tox environment ``models``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, Architecture, loss, move
from audited_loops import report_on
from torch import nn

from amp_checks.audit import Report, Severity, Training


def _builder(architecture: Architecture, plant: Any) -> Callable[[str, torch.dtype], Training]:
    def build(device: str, dtype: torch.dtype) -> Training:
        model = architecture.build()
        if plant is not None:
            plant(model, dtype)
        model.to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**12, enabled=dtype is torch.float16)

        def step(batch: Any) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                value = loss(model, batch)
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, step=step, batches=[move(architecture.batch(), device) for _ in range(2)])

    return build


def _audit(architecture: Architecture, backend: str, plant: Any = None) -> Report:
    return report_on(_builder(architecture, plant), backend, id=architecture.id)


@pytest.mark.parametrize(
    ("architecture", "backend"),
    [pytest.param(one, backend, id=f"{one.id}-{backend}") for one in ARCHITECTURES for backend in one.backends],
)
def test_no_crash_and_no_false_alarm(architecture: Architecture, backend: str) -> None:
    report = _audit(architecture, backend)
    alarms = [one for one in report.diagnostics if one.severity is not Severity.NOTE]
    unexpected = [one for one in alarms if one.rule not in architecture.true_findings]
    assert [(one.rule, one.place, one.message) for one in unexpected] == []
    assert {one.rule for one in alarms} == architecture.true_findings


class _Overflowing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self.inner(*args, **kwargs) + 1) * 300 * 300  # a head may start as all zeros


class _TinyEps(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.inner(*args, **kwargs)
        return out / (out.abs().mean(-1, keepdim=True) + 1e-8)


class _HalfBuffer(nn.Module):
    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("table", torch.ones(1, dtype=dtype))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs) * self.table


def _last_layer(model: nn.Module) -> str:
    """The last linear layer of the model, or where there is none its last convolution."""
    for kind in (nn.Linear, nn.Conv2d):
        names = [name for name, module in model.named_modules() if type(module) is kind]
        if names:
            return str(names[-1])
    raise LookupError("no layer to plant a fault in")


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


PLANTS: dict[str, tuple[str, Callable[[nn.Module, torch.dtype], nn.Module]]] = {
    "overflow": ("loss-not-finite", lambda inner, dtype: _Overflowing(inner)),
    "eps": ("constant-not-representable", lambda inner, dtype: _TinyEps(inner)),
    "buffer": ("buffer-in-16-bits", _HalfBuffer),
}
LIGHT = (
    "squeezenet1_1 shufflenet_v2_x0_5 vit swin timm_vit mixer bert distilbert gpt2 llama mistral t5 whisper "
    "wav2vec2 lstm unet"
).split()
"""Every kind, by architectures that run in seconds."""


@pytest.mark.parametrize("fault", PLANTS)
@pytest.mark.parametrize("architecture", [one for one in ARCHITECTURES if one.id in LIGHT], ids=lambda one: one.id)
def test_planted_fault_is_placed_on_its_module(architecture: Architecture, fault: str) -> None:
    rule, wrap = PLANTS[fault]
    planted: list[str] = []

    def plant(model: nn.Module, dtype: torch.dtype) -> None:
        name = _last_layer(model)
        planted[:] = [name]
        _replace(model, name, wrap(model.get_submodule(name), dtype))

    report = _audit(architecture, "emulated-cuda-float16", plant)
    found = [one for one in report.diagnostics if one.rule == rule]
    assert planted[0] in {one.module for one in found}, [(one.rule, one.place) for one in report.diagnostics]
