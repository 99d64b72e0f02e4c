"""Programs whose savings are known beforehand: the reference model, a transformer, a layer that is used twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from amp_checks.audit.case import AuditCase
from amp_checks.reference.language import LENGTH, Transformer
from amp_checks.reference.model import HIDDEN, INPUTS, SimpleTextModel
from amp_checks.suite.row import Row

_ROWS, _OUTPUTS, _ALPHABET, _BATCH = 256, 8, 64, 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorthRow(Row):
    """A program with what AMP must save of it.

    Attributes:
        build: ``build(device, dtype)``, a case of the audit.
        saved_share: most bytes that forward keeps for backward under AMP, without copies of weights, over FP32's.
        why: where that share comes from.
        weight_casts: casts of parameters in one forward: each weight and bias of a linear layer once.
    """

    family: ClassVar[str] = "worth"

    id: str
    build: Callable[..., Any]
    saved_share: float
    why: str
    weight_casts: int

    def case(self) -> AuditCase:
        """The program, as a case."""
        return AuditCase(id=f"worth-{self.id}", build=self.build)


class TwiceUsed(nn.Module):
    """One linear layer, applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(torch.relu(self.layer(x)))
        return out


def _program(
    device: str,
    dtype: torch.dtype,
    model: nn.Module,
    batches: list[Any],
    loss: Callable[[torch.Tensor, Any], torch.Tensor],
) -> dict[str, Any]:
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8, enabled=dtype is torch.float16)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            value = loss(model(batch.to(device)), batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()

    return {"model": model, "batches": batches, "step": step}


def _reference(device: str, dtype: torch.dtype) -> dict[str, Any]:
    target = torch.zeros(_ROWS, _OUTPUTS, device=device)
    batches = [torch.randn(_ROWS, INPUTS) for _ in range(2)]
    return _program(
        device, dtype, SimpleTextModel(_OUTPUTS), batches, lambda out, _: functional.mse_loss(out, target)
    )  # fmt: skip


def _transformer(device: str, dtype: torch.dtype) -> dict[str, Any]:
    batches = [torch.randint(_ALPHABET, (_BATCH, LENGTH)) for _ in range(2)]

    def loss(out: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out.flatten(0, 1), batch.to(out.device).flatten())

    return _program(device, dtype, Transformer(_ALPHABET), batches, loss)


def _twice(device: str, dtype: torch.dtype) -> dict[str, Any]:
    batches = [torch.randn(_ROWS, HIDDEN) for _ in range(2)]
    return _program(device, dtype, TwiceUsed(), batches, lambda out, _: functional.mse_loss(out, torch.zeros_like(out)))


_SCALE = 4
"""Bytes of the loss scale, which a scaled loss keeps."""


def _share(low: int, kept: int) -> float:
    """Of so many values that are kept in 16 bits, and others that are kept in float32 under AMP as without it."""
    return (2 * low + 4 * kept + _SCALE) / (4 * low + 4 * kept)


CASES: tuple[WorthRow, ...] = (
    WorthRow(
        id="reference-model",
        build=_reference,
        saved_share=_share(_ROWS * (INPUTS + HIDDEN), 2 * _ROWS * _OUTPUTS),
        why="the inputs of both layers halve; the loss keeps its two arguments in float32, by rule",
        weight_casts=4,
    ),
    WorthRow(
        id="transformer",
        build=_transformer,
        saved_share=0.66,
        why="0.603 (CPU rules) to 0.630 (CUDA rules) of FP32 was counted: norms and the loss keep float32, by rule",
        weight_casts=18,
    ),
    WorthRow(
        id="layer-used-twice",
        build=_twice,
        saved_share=_share(2 * _ROWS * HIDDEN, 2 * _ROWS * HIDDEN),
        why="the inputs of both uses halve; the loss keeps its two arguments in float32, by rule",
        weight_casts=2,
    ),
)
