"""Casts that the emulation makes to run an op are no casts of the program."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks import backends
from amp_checks.audit import AuditCase, Training, audit
from amp_checks.emulation import emulate, replaces_op


class Casts(TorchDispatchMode):
    """Of each cast, the dtype that it gives and whether the emulation says that it is its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[torch.dtype, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.seen.append((out.dtype, replaces_op()))
        return out


def test_the_emulation_says_which_casts_are_its_own() -> None:
    x, casts = torch.ones(2, 2), Casts()
    with emulate("cuda", numerics="float32"), torch.autocast("cuda", torch.float16), casts:
        low = x.half()
        low @ low
    assert casts.seen == [
        (torch.float16, False),
        (torch.float32, True),
        (torch.float32, True),
        (torch.float16, True),
    ]
    assert not replaces_op()


def test_an_audit_lays_none_of_them_to_the_program() -> None:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 4).to(device)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-2), torch.amp.GradScaler(device)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                low = batch.half()
                loss = (model(low).float() - 0.3).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, batches=[torch.randn(16, 8).to(device) for _ in range(3)], step=step)

    report = audit(AuditCase(id="own", build=case), backends.emulated("cuda", "float16", numerics="float32"))
    assert "cast-back-and-forth" not in [found.rule for found in report.diagnostics]
