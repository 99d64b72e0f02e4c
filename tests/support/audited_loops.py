"""Small training loops to audit: with hooks on gradients, and what is done between backward and step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Report, Severity, Training, audit

CPU = backends.backend("cpu-float16")
Program = Callable[[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler], Callable[[Tensor], None]]


def small() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def report_on(build: Callable[..., object], backend: str = "cpu-float16", *, id: str) -> Report:  # noqa: A002 - its name
    """The report on a case, without the warnings of its runs; its random numbers start from ``id``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(AuditCase(id=id, build=build), backends.backend(backend))


def audited(program: Program, model_of: Callable[[], nn.Module] = small, **scaler: Any) -> Report:
    """The report on a program under cpu-float16; ``scaler`` is of its scaler."""

    def case(device: str, dtype: torch.dtype) -> Training:
        model = model_of().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        grad_scaler = torch.amp.GradScaler(device, **{"init_scale": 2.0**10, **scaler})
        step = program(model, optimizer, grad_scaler)
        return Training(model=model, batches=[torch.randn(16, 8).to(device) for _ in range(5)], step=step)

    return report_on(case, id="hooks")


def findings(report: Report) -> list[str]:
    """The rules of its errors and warnings."""
    return [one.rule for one in report.diagnostics if one.severity is not Severity.NOTE]


def loop(
    loss: Callable[[nn.Module, Tensor], Tensor] = lambda model, batch: (model(batch).float() - 0.3).square().mean(),
    before: Callable[[nn.Module, torch.amp.GradScaler], None] = lambda model, scaler: None,
    between: Callable[[nn.Module, torch.amp.GradScaler], None] = lambda model, scaler: None,
) -> Program:
    """A loop; ``before`` is done once, ``between`` after each backward."""

    def program(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> Callable[[Tensor], None]:
        before(model, scaler)

        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                value = loss(model, batch)
            scaler.scale(value).backward()
            between(model, scaler)
            scaler.step(optimizer)
            scaler.update()

        return step

    return program


def hook(make: Callable[[Tensor, Callable[[], float]], Tensor], *names: str) -> Callable[..., None]:
    """Hooks on parameters, all where none is named."""

    def before(model: nn.Module, scaler: torch.amp.GradScaler) -> None:
        for name, parameter in model.named_parameters():
            if not names or name in names:
                parameter.register_hook(lambda gradient: make(gradient, scaler.get_scale))

    return before
