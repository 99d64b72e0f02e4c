"""Several meshes, replicas and shards, plain tensors beside DTensors."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from amp_checks.core import Finding, attempt
from amp_checks.families.distributed import world
from amp_checks.families.distributed.promises.sharded import mesh
from amp_checks.families.distributed.rows import SAME, DistributedRow, promise
from amp_checks.families.distributed.training import INF
from amp_checks.torch_api.backend import Backend


def _parameter(over: DeviceMesh, placement: Any, local: torch.Tensor, gradient: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(DTensor.from_local(local, over, [placement], run_check=False))
    parameter.grad = DTensor.from_local(gradient, over, [placement], run_check=False)
    return parameter


def stepped(backend: Backend, parameters: list[nn.Parameter]) -> float:
    """The loss scale after one step, of 1024 before."""
    scaler = backend.scaler(init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    optimizer = torch.optim.SGD(parameters, lr=0.125)
    attempt("step", scaler.step, optimizer)
    attempt("update", scaler.update)
    return float(scaler.get_scale())


def _meshes(rank: int, backend: Backend, *, order: str) -> float:
    """Experts on the second dimension of a 2x2 mesh, the rest on all four ranks; inf in rank 0's expert."""
    grid, line = mesh(2, 2), mesh(4)
    one = torch.ones(1, 2)
    expert = _parameter(grid["b"], Shard(0), one, one * INF if rank == 0 else one)
    dense = _parameter(line, Shard(0), one, one)
    return stepped(backend, [expert, dense] if order == "experts-first" else [dense, expert])


@promise("two-meshes", 29, source=SAME, variants=("experts-first", "experts-last"))
def check_two_meshes(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Gradients on a mesh and on a sub-mesh in one optimizer, an inf in an expert of rank 0: all ranks skip."""
    seen = world.threads(4, functools.partial(_meshes, order=case.variant), backend)
    yield from case.each("scale", [*seen], 512.0)


def _plain_beside(rank: int, backend: Backend, *, order: str) -> float:
    one = torch.ones(1, 2)
    sharded = _parameter(mesh(2), Shard(0), one, one)
    plain = nn.Parameter(one.clone())
    plain.grad = one.clone()
    del rank
    return stepped(backend, [sharded, plain] if order == "sharded-first" else [plain, sharded])


@promise("plain-beside-sharded", 30, source=SAME, variants=("sharded-first", "plain-first"))
def check_plain_beside(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """A plain tensor and a DTensor in one optimizer, clean gradients: the step is taken."""
    seen = world.threads(2, functools.partial(_plain_beside, order=case.variant), backend)
    yield from case.each("scale", [*seen], 1024.0)


def _placed(rank: int, backend: Backend, *, placement: str) -> float:
    one = torch.ones(2, 2)
    kind = Replicate() if placement == "replicas" else Shard(1 if placement == "columns" else 0)
    return stepped(backend, [_parameter(mesh(2), kind, one, one * INF if rank == 1 else one)])


@promise("inf-in-one-of", 31, source=SAME, variants=("rows", "columns", "replicas"))
def check_placed(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """An inf in one shard, or in one replica, of a gradient: all ranks skip."""
    yield from case.each(
        "scale", [*world.threads(2, functools.partial(_placed, placement=case.variant), backend)], 512.0
    )
