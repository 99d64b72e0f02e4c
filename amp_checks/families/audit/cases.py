"""Programs that are audited in every run: the reference recipe, in a loop as its user would write it.

A user's own programs are rows too: ``parametrize_with_checks([AuditCase(id="mine", build=case)])``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from amp_checks.audit.case import AuditCase, Training
from amp_checks.reference import recipes
from amp_checks.reference.model import INPUTS, SimpleTextModel


def _reference(device: str, dtype: torch.dtype) -> Training:
    target = recipes.BITS.encode(recipes.TEXT).to(device)
    model = SimpleTextModel(target.shape[1]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipes.LEARNING_RATE)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, enabled=dtype is torch.float16)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scaler": scaler}

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = nn.functional.mse_loss(model(batch.to(device)), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()

    def load(state: dict[str, Any]) -> None:
        for name, part in parts.items():
            part.load_state_dict(state[name])

    return Training(
        model=model,
        batches=[torch.randn(1, INPUTS) for _ in range(4)],
        step=step,
        save=lambda: {name: part.state_dict() for name, part in parts.items()},
        load=load,
    )


CASES: tuple[AuditCase, ...] = (AuditCase(id="reference", build=_reference),)
