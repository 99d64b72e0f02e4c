"""FLOPs, bytes, casts and saved bytes against counts worked out here, torch's own counter, and a hook of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from amp_checks import backends
from amp_checks.audit.case import AuditCase
from amp_checks.worth import devices
from amp_checks.worth.report import Worth, worth

B, K, N = 32, 64, 48


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small:
    """A small program with what was worked out for it on paper, one iteration of forward and backward.

    Attributes:
        casts: how many, and the bytes that they read and write (a value is read in one size, written in another).
        saved: bytes that forward keeps, parameters and copies of them not counted.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    flops: int
    casts: tuple[int, int]
    saved: int
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda model, x: model(x).sum()


class _Weight(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))


class _Product(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class _Twice(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + (2 * x) @ self.weight


class _Scaled(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class _Attends(_Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = x * self.weight
        return functional.scaled_dot_product_attention(query, query, query)


def _mean(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(x), x)


def _there_and_back(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(x).float()
    return out.bfloat16().sum()


INPUT, WEIGHT, OUT = B * K, K * N, B * N
BOTH = 6
"""Bytes of a value that is cast between float32 and 16 bits."""
SMALL = (
    # The input does not require a gradient: backward has the weight's product alone.
    Small(name="linear", build=lambda: nn.Linear(K, N, bias=False), shape=(B, K), flops=2 * 2 * B * K * N,
          casts=(3, BOTH * (INPUT + 2 * WEIGHT)), saved=2 * INPUT),
    Small(name="linear-with-bias", build=lambda: nn.Linear(K, N), shape=(B, K), flops=2 * 2 * B * K * N,
          casts=(5, BOTH * (INPUT + 2 * WEIGHT + 2 * N)), saved=2 * INPUT),
    Small(name="product", build=lambda: _Product(K, N), shape=(B, K), flops=2 * 2 * B * K * N,
          casts=(3, BOTH * (INPUT + 2 * WEIGHT)), saved=2 * INPUT),
    # One cast of the weight serves both products, by autocast's cache.
    Small(name="weight-used-twice", build=lambda: _Twice(K, N), shape=(B, K), flops=2 * 4 * B * K * N,
          casts=(4, BOTH * (2 * INPUT + 2 * WEIGHT)), saved=4 * INPUT),
    Small(name="two-layers", build=lambda: nn.Sequential(nn.Linear(K, N, bias=False), nn.Linear(N, K, bias=False)),
          shape=(B, K), flops=2 * B * K * N * 5, casts=(5, BOTH * (INPUT + 4 * WEIGHT)), saved=2 * INPUT + 2 * OUT),
    # The output of ReLU is kept once, for itself and for the second layer.
    Small(name="relu-between",
          build=lambda: nn.Sequential(nn.Linear(K, N, bias=False), nn.ReLU(), nn.Linear(N, K, bias=False)),
          shape=(B, K), flops=2 * B * K * N * 5, casts=(5, BOTH * (INPUT + 4 * WEIGHT)), saved=2 * INPUT + 2 * OUT),
    Small(name="no-product", build=lambda: _Scaled(K), shape=(B, K), flops=0, casts=(0, 0), saved=4 * INPUT),
    # 8 channels in, 16 out, 3 x 3, on 10 x 10 without padding: 64 positions.
    Small(name="convolution", build=lambda: nn.Conv2d(8, 16, 3, bias=False), shape=(4, 8, 10, 10),
          flops=2 * 2 * 4 * 64 * 16 * 8 * 9, casts=(3, BOTH * (3200 + 2 * 1152)), saved=2 * 3200),
    Small(name="batched-product", build=lambda: _Product(4, K, N), shape=(4, B, K), flops=2 * 2 * 4 * B * K * N,
          casts=(3, BOTH * 4 * (INPUT + 2 * WEIGHT)), saved=2 * 4 * INPUT),
    # Two casts that the program asks for, and their two in backward, the first of which reads the one value that the
    # gradient of a sum repeats.
    Small(name="there-and-back", build=lambda: nn.Linear(K, N, bias=False), shape=(B, K), flops=2 * 2 * B * K * N,
          casts=(7, BOTH * (INPUT + 2 * WEIGHT + 4 * OUT) - 2 * (OUT - 1)), saved=2 * INPUT, loss=_there_and_back),
)  # fmt: skip


def counted(small: Small, backend: str = "cpu-bfloat16") -> Worth:
    def case(device: str, dtype: torch.dtype) -> dict[str, Any]:
        model = small.build().to(device)

        def step(batch: torch.Tensor) -> None:
            model.zero_grad()
            with torch.autocast(device, dtype=dtype):
                loss = small.loss(model, batch.to(device))
            loss.backward()

        return {"model": model, "batches": [torch.ones(small.shape) for _ in range(2)], "step": step}

    return worth(AuditCase(id=small.name, build=case), backends.backend(backend), devices.device("a100"))


@pytest.mark.parametrize("small", SMALL, ids=lambda one: one.name)
def test_counts_are_those_worked_out(small: Small) -> None:
    found = counted(small).amp
    assert found.flops == small.flops
    assert found.casts() == small.casts
    assert found.saved_bytes == small.saved


@pytest.mark.parametrize("small", SMALL, ids=lambda one: one.name)
def test_flops_are_those_of_torchs_own_counter(small: Small) -> None:
    model, x = small.build(), torch.ones(small.shape)
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", dtype=torch.bfloat16):
        small.loss(model, x).backward()
    assert counted(small).amp.flops == pytest.approx(counter.get_total_flops(), rel=0.01)


TRANSFORMER = Small(
    name="transformer", build=lambda: nn.TransformerEncoderLayer(K, 4, 128, dropout=0.0, batch_first=True),
    shape=(4, 16, K), flops=0, casts=(0, 0), saved=0, loss=_mean,
)  # fmt: skip
ATTENTION = Small(name="attention", build=lambda: _Attends(16), shape=(2, 4, 32, 16), flops=0, casts=(0, 0), saved=0)


def _attention_flops(batch: int, heads: int, length: int, width: int) -> int:
    """Two products in forward, five in backward: torch's counter knows the CPU's attention not at all."""
    return 7 * 2 * batch * heads * length * length * width


def test_flops_of_attention_are_its_seven_products() -> None:
    assert counted(ATTENTION).amp.flops == _attention_flops(2, 4, 32, 16)


def test_flops_of_a_transformer_are_those_of_torchs_own_counter_and_its_attention() -> None:
    model, x = TRANSFORMER.build(), torch.ones(TRANSFORMER.shape)
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", dtype=torch.bfloat16):
        TRANSFORMER.loss(model, x).backward()
    expected = counter.get_total_flops() + _attention_flops(4, 4, 16, K // 4)
    assert counted(TRANSFORMER).amp.flops == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("small", [*SMALL, TRANSFORMER, ATTENTION], ids=lambda one: one.name)
def test_saved_bytes_are_what_a_hook_sees(small: Small) -> None:
    model, x = small.build(), torch.ones(small.shape)
    own = {held.untyped_storage().data_ptr() for held in model.parameters()}
    seen: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = small.loss(model, x)
        loss.backward()
    found = counted(small).amp
    assert found.saved_bytes + found.saved_copies == sum(storage.nbytes() for storage in seen.values())


def test_bytes_of_an_op_are_what_it_reads_and_writes() -> None:
    found = counted(SMALL[0]).amp
    (product,) = [op for op, _ in found.ops if op.name == "mm" and op.phase == "forward"]
    assert product.bytes == 2 * (INPUT + WEIGHT + OUT)
    assert product.low
    assert product.odd is None


@pytest.mark.parametrize("backend", ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-xpu-bfloat16"])
def test_counts_are_the_same_on_every_backend(backend: str) -> None:
    found = counted(SMALL[1], backend).amp
    assert (found.flops, found.low_flops) == (SMALL[1].flops, SMALL[1].flops)
    assert found.casts("program") == (0, 0)
    assert found.weight_copies == 2 * (WEIGHT + N)
