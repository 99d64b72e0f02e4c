"""FSDP1 under both scalers."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from amp_checks.core import Finding, attempt
from amp_checks.families.distributed import training, world
from amp_checks.families.distributed.promises.sharded import SHARDED, fsdp1, sharded_scaler
from amp_checks.families.distributed.rows import SAME, DistributedRow, promise
from amp_checks.families.distributed.training import INF, SETTINGS, WIDTH
from amp_checks.torch_api.backend import Backend

POLICIES = {
    "none": None,
    "fp16": MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16),
    "bf16": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    "fp16-fp32": MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float32),
}
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


def _one(rank: int, backend: Backend, *, variant: str, sharded: bool = True) -> tuple[float, str, bool]:
    strategy, policy = variant.split("-", 1)
    wrapped = fsdp1(training.model(), strategy, POLICIES[policy])
    scaler = sharded_scaler(backend) if sharded else backend.scaler(**SETTINGS)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.125)
    decisions = []
    for number in range(2):
        optimizer.zero_grad()
        # Infinite in the first row of the first weight alone: one rank's shard has it.
        output = attempt("forward", wrapped, training.batch(rank, 0))
        attempt("backward", scaler.scale(output.float().sum()).backward)
        if number == 1 and rank == 0:
            for parameter in wrapped.parameters():
                if parameter.grad is not None and parameter.grad.numel():
                    parameter.grad.view(-1)[0] = INF
        attempt("step", scaler.step, optimizer)
        attempt("update", scaler.update)
        decisions.append(scaler.get_scale())
    finite = all(bool(torch.isfinite(parameter).all()) for parameter in wrapped.parameters())
    return decisions[0], repr(decisions[1]), finite


@promise("fsdp1", 21, source=SHARDED, variants=tuple(f"{one}-{two}" for one in STRATEGIES for two in POLICIES))
def check_fsdp1(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """ShardedGradScaler: a clean step is taken, an inf in the shard of rank 0 skips the next on both."""
    for rank, (first, second, finite) in enumerate(
        world.threads(2, functools.partial(_one, variant=case.variant), backend)
    ):
        yield case.exact(f"rank {rank}: scale after a clean step", actual=first, expected=8.0)
        yield case.exact(f"rank {rank}: scale after an inf", actual=second, expected="4.0")
        yield case.exact(f"rank {rank}: weights are finite", actual=finite, expected=True)


@promise("fsdp1-plain-scaler", 20, source=SAME)
def check_fsdp1_plain(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """The same under GradScaler, which knows nothing of shards."""
    program = functools.partial(_one, variant="FULL_SHARD-none", sharded=False)
    yield from case.each("scale after an inf", [it[1] for it in world.threads(2, program, backend)], "4.0")


def _grown(rank: int, backend: Backend) -> float:
    del rank
    scaler = ShardedGradScaler(backend.device_type, init_scale=2.0**127, growth_interval=1)
    parameter = nn.Parameter(torch.zeros(1))
    scaler.scale(torch.zeros(()))
    parameter.grad = torch.zeros(1)
    attempt("step", scaler.step, torch.optim.SGD([parameter], lr=0.1))
    attempt("update", scaler.update)
    return float(scaler.get_scale())


@promise("sharded-scaler-growth", 24, source="torch.amp.GradScaler: growth stops where float32 does")
def check_sharded_growth(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """A scale of 2^127 that grows: ShardedGradScaler keeps it, as GradScaler does."""
    yield from case.each("scale", [*world.threads(2, _grown, backend)], 2.0**127)


def _full_state(rank: int, backend: Backend) -> str:
    del rank, backend
    inner = training.model()
    inner.register_buffer("count", torch.zeros(1))
    wrapped = fsdp1(inner, policy=MixedPrecision(torch.float16, torch.float16, torch.float16))
    attempt("forward", wrapped, torch.ones(2, WIDTH))
    return repr(sorted({str(value.dtype) for value in wrapped.state_dict().values()}))


@promise("fsdp1-state-dict", 26, source="torch.distributed.fsdp.MixedPrecision: checkpoints are in full precision")
def check_full_state(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Parameters and buffers of a state dict are float32 under a float16 policy."""
    yield from case.each("dtypes", [*world.threads(2, _full_state, backend)], "['torch.float32']")
