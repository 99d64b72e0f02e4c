"""An emulated device refuses what is recorded of it, and runs what is recorded of it, where the CPU does otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from amp_checks.core import NotEmulated
from amp_checks.emulation import emulate, recorded
from amp_checks.records import low_precision

LOW = (torch.float16, torch.bfloat16)
CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "angle": torch.angle,
    "cdist": lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
    "histc": lambda x: x.histc(4),
    "igamma": lambda x: torch.igamma(x, x),
    "igamma_": lambda x: x.clone().igamma_(x),
    "igammac_": lambda x: x.clone().igammac_(x),
    "igammac": lambda x: torch.special.gammaincc(x, x),
    "lu_unpack": lambda x: torch.lu_unpack(x, torch.arange(1, 9, dtype=torch.int32)),
}
MARGINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multi_margin_loss": lambda x: functional.multi_margin_loss(x, torch.arange(8)),
    "multilabel_margin_loss": lambda x: functional.multilabel_margin_loss(x, torch.arange(8).expand(8, 8)),
}


def half(dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(64.0).view(8, 8) / 64 + 0.5).to(dtype)


def lacks(op: str, dtype: torch.dtype) -> bool:
    return recorded.lacks(recorded.REFUSED[op], "cuda", dtype)


def test_every_refused_op_is_called_here() -> None:
    assert set(CALLS) == set(recorded.REFUSED)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("op", CALLS)
def test_what_is_recorded_to_be_refused_is_refused_as_torch_does_it(op: str, dtype: torch.dtype) -> None:
    with emulate("cuda"), torch.autocast("cuda", enabled=False):
        if lacks(op, dtype):
            told = r'"\w+_cuda" not implemented for \'(Half|BFloat16)\' \(emulated cuda: .* not verified on a device\)'
            with pytest.raises(NotImplementedError, match=told) as raised:
                CALLS[op](half(dtype))
            assert not isinstance(raised.value, NotEmulated)
        else:
            CALLS[op](half(dtype))


@pytest.mark.parametrize("op", CALLS)
def test_the_same_op_runs_in_float32(op: str) -> None:
    with emulate("cuda"), torch.autocast("cuda", enabled=False):
        CALLS[op](half(torch.float32))


@pytest.mark.parametrize("device", ["cpu", "xpu"])
@pytest.mark.parametrize("op", CALLS)
def test_a_device_of_which_no_lack_is_declared_runs_what_the_cpu_runs(op: str, device: str) -> None:
    with emulate(device), torch.autocast(device, enabled=False):
        CALLS[op](half(torch.float16))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("op", MARGINS)
def test_what_the_device_runs_and_the_cpu_does_not_is_float32_rounded_once(op: str, dtype: torch.dtype) -> None:
    x = half(dtype).requires_grad_()
    with emulate("cuda"), torch.autocast("cuda", enabled=False):
        loss = MARGINS[op](x)
    loss.backward()
    wide = x.detach().float().requires_grad_()
    exact = MARGINS[op](wide)
    exact.backward()

    assert x.grad is not None
    assert wide.grad is not None
    assert torch.equal(loss, exact.to(dtype))
    assert torch.equal(x.grad, wide.grad.to(dtype))


def test_the_record_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_precision, "here", lambda op, device, dtype: None)

    with emulate("cuda"), torch.autocast("cuda", enabled=False):
        assert torch.angle(half(torch.float16)).dtype is torch.float16
