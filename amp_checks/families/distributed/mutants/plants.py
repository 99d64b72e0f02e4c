"""How reductions, hooks, wrappers and policies are broken, on all ranks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel

from amp_checks.families.distributed.mutants.rows import Plant, replacing
from amp_checks.families.distributed.promises import sharded
from amp_checks.torch_api import private_ranks
from amp_checks.torch_api.backend import Backend

Change = Callable[[torch.Tensor], torch.Tensor]


def future(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(value)
    return done


def hook(change: Change) -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A communication hook that gives what ``change`` makes of the local bucket."""
    return lambda _, bucket: future(change(bucket.buffer()))


def reduced(op: Any, divide: int = 1) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        whole = buffer.clone()
        dist.all_reduce(whole, op=op)
        return whole / divide

    return change


def ddp(change: Change) -> Plant:
    """Every DDP reduces its gradients by that change."""

    def made(original: Any) -> Any:
        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.register_comm_hook(None, hook(change))

        return init

    return replacing(DistributedDataParallel, "__init__", made)


def mean(buffer: torch.Tensor) -> torch.Tensor:
    return reduced(dist.ReduceOp.SUM, 2)(buffer)


def fp16_hook(change: Change) -> Plant:
    return replacing(default_hooks, "fp16_compress_hook", lambda _: hook(change))


def low(dtype: torch.dtype) -> Change:
    return lambda buffer: mean(buffer.to(dtype)).to(buffer.dtype)


def all_reduce(change: Callable[..., Any]) -> Plant:
    return replacing(dist, "all_reduce", lambda original: functools.partial(change, original))


def without(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The rank takes part, and keeps its own value."""
    return original(tensor.clone(), *args, **kwargs)


def by_minimum(original: Any, tensor: torch.Tensor, **_: Any) -> Any:
    return original(tensor, op=dist.ReduceOp.MIN)


def one_left_out(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return original(tensor if dist.get_rank() == 0 else tensor.clone(), *args, **kwargs)


def policy(**changed: Any) -> Plant:
    """FSDP2 with another policy than the one asked for."""

    def made(original: Any) -> Any:
        def shard(module: nn.Module, *, mp_policy: MixedPrecisionPolicy | None = None, **kwargs: Any) -> Any:
            policy = dataclasses.replace(mp_policy or MixedPrecisionPolicy(), **changed)
            return original(module, mp_policy=policy, **kwargs)

        return shard

    return replacing(sharded, "fully_shard", made)


def unsharded(original: Any) -> Any:
    del original
    return lambda module, **_: module


def local_norm(original: Any) -> Any:
    """Clipping by the norm of this rank's shard."""

    def clip(parameters: Any, max_norm: float) -> torch.Tensor:
        held = []
        for parameter in parameters:
            local = nn.Parameter(getattr(parameter, "_local_tensor", parameter).detach())
            local.grad = getattr(parameter.grad, "_local_tensor", parameter.grad)
            held.append(local)
        return original(held, max_norm)  # type: ignore[no-any-return]

    return clip


def keeping_scale(original: Any) -> Any:
    def update(self: Any) -> None:
        before = self.state_dict()
        original(self)
        self.load_state_dict(before)

    return update


def norm(change: Change) -> Plant:
    def made(original: Any) -> Any:
        return lambda *args, **kwargs: change(original(*args, **kwargs))

    return replacing(nn.utils, "clip_grad_norm_", made)


def norm_of_rank(original: Any) -> Any:
    def clip(parameters: Any, max_norm: float, **kwargs: Any) -> Any:
        return original(parameters, max_norm / (1 + dist.get_rank() if dist.is_initialized() else 1), **kwargs)

    return clip


def outside_region(original: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return original(self, *args, **kwargs)

    return forward


def never_synchronised(original: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.no_sync():
            return original(self, *args, **kwargs)

    return forward


def nothing(original: Any) -> Any:
    del original
    return lambda *_, **__: None


def half_state(original: Any) -> Any:
    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        return {name: value.half() for name, value in original(self, *args, **kwargs).items()}

    return state_dict


def dtensor_flag(change: Callable[..., None]) -> Plant:
    """DTensor's handler of the check op replaced: on local tensors, and then ``change`` of the flag."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        handlers, op = private_ranks.found_inf_handlers()

        def handler(_: Any, args: tuple[Any, ...], __: Any) -> None:
            gradients, flag, inverse = args
            op([gradient._local_tensor for gradient in gradients], flag, inverse)  # noqa: SLF001 - as torch's own does
            change(flag)

        with mock.patch.dict(handlers, {op: handler}):
            yield backend

    return plant


def minimum(flag: torch.Tensor) -> None:
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)


def on_cpu(backend: Backend) -> bool:
    return backend.device_type == "cpu"
