"""The answers reach names that were imported before; cuDNN's switches and the optimizers' choices do no harm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda import Stream as EarlyStream
from torch.cuda import is_available, memory_allocated, synchronize

from amp_checks.emulation import emulate

EARLY = {"is_available": is_available, "memory_allocated": memory_allocated, "synchronize": synchronize}


@pytest.mark.parametrize("name", EARLY)
def test_who_imported_a_name_before_gets_the_answer_too(name: str) -> None:
    function = EARLY[name]
    before = function.__code__
    with emulate("cuda"):
        assert function is getattr(torch.cuda, name)
        assert function() == {"is_available": True, "memory_allocated": 0, "synchronize": None}[name]
        assert torch.cuda.memory.memory_allocated() == torch.cuda.memory_allocated() == 0  # its second home
        assert isinstance(EarlyStream(), EarlyStream)
        assert isinstance(torch.cuda.current_stream(), EarlyStream)
    assert function.__code__ is before
    assert not hasattr(function, "__wrapped__")


def test_switches_of_cudnn_are_the_programs_own_and_are_put_back() -> None:
    cudnn: Any = torch.backends.cudnn
    before = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    with emulate("cuda"):
        assert cudnn.is_available()
        assert cudnn.enabled
        cudnn.enabled = True  # cuDNN's kernels are not here, whatever the program says
        cudnn.benchmark, cudnn.deterministic = not before[1], not before[2]
        with torch.autocast("cuda", dtype=torch.float16):
            assert nn.LSTM(2, 2).cuda()(torch.ones(1, 2, 2))[0].dtype is torch.float16
            assert nn.Conv2d(2, 2, 1).cuda()(torch.ones(1, 2, 3, 3)).dtype is torch.float16
        cudnn.enabled = False
        assert not cudnn.enabled
        with cudnn.flags(enabled=True):
            assert cudnn.enabled
    assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == before


CHOICES: list[tuple[Any, dict[str, bool]]] = [
    (kind, settings)
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    for settings in ({"fused": True}, {"foreach": True}, {"foreach": False}, {})
    if not (kind is torch.optim.Adagrad and "fused" in settings)  # torch 2.11 refuses that on a real device too
]


@pytest.mark.parametrize(("kind", "settings"), CHOICES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_optimizers_skip_and_step_whatever_they_choose(kind: Any, settings: dict[str, bool]) -> None:
    with emulate("cuda"):
        weight = nn.Parameter(torch.ones(4, device="cuda"))
        optimizer, scaler = kind([weight], lr=0.1, **settings), torch.amp.GradScaler("cuda", init_scale=4.0)
        seen = []
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append(float(weight.detach()[0]))
    assert seen[0] < 1.0
    assert seen[1] == seen[0]  # skipped
    assert seen[2] < seen[1]
    assert scaler.get_scale() == 2.0
