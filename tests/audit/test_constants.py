"""Constants that a 16-bit dtype lacks: which are told, and which numbers beyond its range do no harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Training, audit

Make = Callable[[torch.Tensor], torch.Tensor]
CPU = backends.backend("cpu-float16")
NONE = torch.zeros(4, dtype=torch.bool)
SOME = torch.tensor([True, False, False, False])


def _told(make: Make, scale: float = 2.0**8) -> list[str]:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=scale)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = make(model(batch))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, batches=[torch.randn(16, 8).to(device) for _ in range(4)], step=step)

    found = audit(AuditCase(id="constants", build=case), CPU).diagnostics
    return [one.message for one in found if one.rule == "constant-not-representable"]


def _contrast(out: torch.Tensor) -> torch.Tensor:
    return out.softmax(-1).float().square().mean()


LOST: dict[str, tuple[Make, str]] = {
    "a mask by where": (lambda out: _contrast(torch.where(SOME, -1e9, out)), "-1e+09 is -inf"),
    "a mask by a product": (lambda out: _contrast(out + SOME.to(out) * -1e9), "-1e+09 is -inf"),
    "a mask of nothing": (lambda out: _contrast(out + NONE.to(out) * -1e9), "-1e+09 is -inf"),
    "a mask by a difference": (lambda out: _contrast(out - SOME.to(out) * 1e9), "1e+09 is inf"),
    "a factor that overflows": (lambda out: (out * 1e6).float().abs().clamp(max=1.0).mean(), "1e+06 is inf"),
    "a factor in place": (lambda out: out.clone().mul_(1e6).float().abs().clamp(max=1.0).mean(), "1e+06 is inf"),
    "a guard": (lambda out: (out / (out.abs().sum() + 1e-9)).float().square().mean(), "1e-09 is 0"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_constant_that_is_lost_is_told(name: str) -> None:
    make, message = LOST[name]
    (told,) = _told(make)
    assert told.startswith(message), told


HARMLESS: dict[str, tuple[Make, float]] = {
    "a loss scale on a 16-bit loss": (lambda out: out.square().mean(), 2.0**16),
    "a large factor of small values": (lambda out: ((out * 1e-6) * 1e5).float().square().mean(), 2.0**8),
    "a large factor of a 16-bit scalar": (lambda out: ((out.square().mean() * 1e-6) * 1e5).float(), 2.0**8),
    "a mask in float32": (lambda out: (out.float() + SOME.to(out) * -1e4).softmax(-1).square().mean(), 2.0**8),
    "a guard in float32": (lambda out: (out / (out.float().abs().sum() + 1e-9)).square().mean(), 2.0**8),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_constant_that_loses_nothing_is_left_in_peace(name: str) -> None:
    make, scale = HARMLESS[name]
    assert _told(make, scale) == []
