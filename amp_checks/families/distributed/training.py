"""The training that every rank runs, in numbers that float16 and bfloat16 hold exactly, and its single-process oracle.

A linear layer without bias, weights 1, inputs small powers of two; the loss is the mean over the batch of the sum of
outputs. So gradients are exact, and what the ranks do must be what one process does, bit for bit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from amp_checks.core import attempt
from amp_checks.families.distributed import world
from amp_checks.torch_api.backend import Backend

INF = float("inf")
WIDTH = 4
ROUNDINGS = 1
"""Bound, in eps of the low dtype, where ranks round what one process does not. 0.14 was the most seen on 2.13.0."""


def model() -> nn.Sequential:
    """Two linear layers of width 4 without bias, weights 1/4 and 1/2."""
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)))
    with torch.no_grad():
        for layer, value in zip(layers, (0.25, 0.5), strict=True):
            layer.weight.fill_(value)  # type: ignore[operator]
    return layers


def batch(rank: int, step: int) -> torch.Tensor:
    """Two rows: 1 or 2 by rank, half of it at odd steps."""
    return torch.full((2, WIDTH), float(1 + rank % 2) * (0.5 if step % 2 else 1.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """What a rank has when its training ends, as plain values."""

    scale: float
    tracker: int
    weights: str
    state: str
    skipped: str

    @property
    def values(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor's full tensor; another tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def text(tensors: Any) -> str:
    """All values, in full, so that equal texts are equal bits (signs of zero included, NaN payloads aside)."""
    return repr([whole(tensor.detach()).tolist() for tensor in tensors])


def end(scaler: Any, parameters: Any, optimizer: torch.optim.Optimizer | None, skipped: list[bool]) -> End:
    states = [] if optimizer is None else [value for state in optimizer.state.values() for value in state.values()]
    state = scaler.state_dict()
    return End(
        scale=float(state["scale"]),
        tracker=int(state["_growth_tracker"]),
        weights=text(parameters),
        state=text(value for value in states if isinstance(value, torch.Tensor)),
        skipped=repr(skipped),
    )


Gradients = Callable[[int, int, Any], None]
"""Called after the backward pass with rank, step and parameters."""


_MOMENTUM = functools.partial(torch.optim.SGD, lr=0.125, momentum=0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a rank trains.

    Attributes:
        wrap: makes the parallel model of the plain one.
        steps: optimizer steps; ``micro`` backward passes each.
        bad: (rank, step) whose data is infinite.
        optimizer: made of parameters.
        clip: to this norm after `unscale_`; 0 for none.
        micro: batches of one step; only the last one synchronises.
        set_to_none: of ``zero_grad``.
        scaler: of the backend where none is given.
        exactly: the algorithm promises the oracle's bits. Where weights need more bits than the low dtype has (Adam,
            clipping, many gradients), each rank's backward pass rounds its own: then weights and state are within
            `ROUNDINGS` eps of the low dtype, relative to the largest value, and the same bits on every rank.
    """

    wrap: Callable[[nn.Module], Any] = DistributedDataParallel
    steps: int = 3
    bad: tuple[int, int] | None = None
    optimizer: Callable[[Any], torch.optim.Optimizer] = _MOMENTUM
    clip: float = 0.0
    micro: int = 1
    set_to_none: bool = True
    scaler: Callable[[Backend], Any] | None = None
    exactly: bool = True


SETTINGS: dict[str, Any] = {"init_scale": 8.0, "growth_interval": 2}


def backward(wrapped: Any, data: torch.Tensor, scaler: Any, backend: Backend, *, parts: int = 1) -> None:
    """Forward under a region, ``loss.backward()`` under the scale."""
    with backend.region():
        output = attempt("forward", wrapped, data)
    loss = output.float().sum(dim=1).mean() / parts
    attempt("backward", scaler.scale(loss).backward)


def step(scaler: Any, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], clip: float = 0.0) -> bool:
    """Unscale, clip, step, update; whether the step was skipped, read off the parameters."""
    before = text(parameters)
    if clip:
        attempt("unscale_", scaler.unscale_, optimizer)
        attempt("clip", nn.utils.clip_grad_norm_, parameters, clip)
    attempt("step", scaler.step, optimizer)
    attempt("update", scaler.update)
    return text(parameters) == before


def train(rank: int, backend: Backend, plan: Plan) -> End:
    """The program of one rank."""
    plain = model()
    wrapped = attempt("wrapping", plan.wrap, plain)
    parameters = list(wrapped.parameters())
    optimizer = plan.optimizer(parameters)
    scaler = backend.scaler(**SETTINGS) if plan.scaler is None else plan.scaler(backend)
    skipped = []
    for number in range(plan.steps):
        optimizer.zero_grad(set_to_none=plan.set_to_none)
        for part in range(plan.micro):
            data = batch(rank, number + part)
            if plan.bad == (rank, number):
                data = data * INF
            if part < plan.micro - 1:
                with wrapped.no_sync():
                    backward(wrapped, data, scaler, backend, parts=plan.micro)
            else:
                backward(wrapped, data, scaler, backend, parts=plan.micro)
        skipped.append(step(scaler, optimizer, parameters, plan.clip))
    return end(scaler, parameters, optimizer, skipped)


def joined(size: int, backend: Backend, plan: Plan) -> End:
    """The oracle: one process, plain model and torch's own scaler, on the batches of all ranks together."""
    with torch.random.fork_rng(devices=[]):
        plain = model()
    optimizer = plan.optimizer(list(plain.parameters()))
    scaler = torch.amp.GradScaler(backend.device_type, **SETTINGS)
    skipped = []
    for number in range(plan.steps):
        optimizer.zero_grad()
        for part in range(plan.micro):
            parts = [batch(rank, number + part) for rank in range(size)]
            if plan.bad is not None and plan.bad[1] == number:
                parts[plan.bad[0]] = parts[plan.bad[0]] * INF
            backward(plain, torch.cat(parts), scaler, backend, parts=plan.micro)
        skipped.append(step(scaler, optimizer, list(plain.parameters()), plan.clip))
    return end(scaler, plain.parameters(), optimizer, skipped)


def ranks(size: int, backend: Backend, plan: Plan) -> list[End]:
    """The same plan on every rank, by threads."""
    return world.threads(size, functools.partial(train, plan=plan), backend)
