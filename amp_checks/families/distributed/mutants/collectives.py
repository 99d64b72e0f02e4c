"""Faulty reductions, hooks, wrappers and policies."""

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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from amp_checks.families.distributed.mutants.rows import Plant, mutant, replacing
from amp_checks.families.distributed.promises import sharded
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api import private_ranks
from amp_checks.torch_api.backend import Backend

Change = Callable[[torch.Tensor], torch.Tensor]


def _future(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(value)
    return done


def _hook(change: Change) -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A communication hook that gives what ``change`` makes of the local bucket."""
    return lambda _, bucket: _future(change(bucket.buffer()))


def _reduced(op: Any, divide: int = 1) -> Change:
    def change(buffer: torch.Tensor) -> torch.Tensor:
        whole = buffer.clone()
        dist.all_reduce(whole, op=op)
        return whole / divide

    return change


def _ddp(change: Change) -> Plant:
    """Every DDP reduces its gradients by that change."""

    def made(original: Any) -> Any:
        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.register_comm_hook(None, _hook(change))

        return init

    return replacing(DistributedDataParallel, "__init__", made)


def _mean(buffer: torch.Tensor) -> torch.Tensor:
    return _reduced(dist.ReduceOp.SUM, 2)(buffer)


def _fp16_hook(change: Change) -> Plant:
    return replacing(default_hooks, "fp16_compress_hook", lambda _: _hook(change))


def _low(dtype: torch.dtype) -> Change:
    return lambda buffer: _mean(buffer.to(dtype)).to(buffer.dtype)


def _all_reduce(change: Callable[..., Any]) -> Plant:
    return replacing(dist, "all_reduce", lambda original: functools.partial(change, original))


def _without(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The rank takes part, and keeps its own value."""
    return original(tensor.clone(), *args, **kwargs)


def _by_minimum(original: Any, tensor: torch.Tensor, **_: Any) -> Any:
    return original(tensor, op=dist.ReduceOp.MIN)


def _one_left_out(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return original(tensor if dist.get_rank() == 0 else tensor.clone(), *args, **kwargs)


def _policy(**changed: Any) -> Plant:
    """FSDP2 with another policy than the one asked for."""

    def made(original: Any) -> Any:
        def shard(module: nn.Module, *, mp_policy: MixedPrecisionPolicy | None = None, **kwargs: Any) -> Any:
            policy = dataclasses.replace(mp_policy or MixedPrecisionPolicy(), **changed)
            return original(module, mp_policy=policy, **kwargs)

        return shard

    return replacing(sharded, "fully_shard", made)


def _unsharded(original: Any) -> Any:
    del original
    return lambda module, **_: module


def _local_norm(original: Any) -> Any:
    """Clipping by the norm of this rank's shard."""

    def clip(parameters: Any, max_norm: float) -> torch.Tensor:
        held = []
        for parameter in parameters:
            local = nn.Parameter(getattr(parameter, "_local_tensor", parameter).detach())
            local.grad = getattr(parameter.grad, "_local_tensor", parameter.grad)
            held.append(local)
        return original(held, max_norm)  # type: ignore[no-any-return]

    return clip


def _keeping_scale(original: Any) -> Any:
    def update(self: Any) -> None:
        before = self.state_dict()
        original(self)
        self.load_state_dict(before)

    return update


def _norm(change: Change) -> Plant:
    def made(original: Any) -> Any:
        return lambda *args, **kwargs: change(original(*args, **kwargs))

    return replacing(nn.utils, "clip_grad_norm_", made)


def _norm_of_rank(original: Any) -> Any:
    def clip(parameters: Any, max_norm: float, **kwargs: Any) -> Any:
        return original(parameters, max_norm / (1 + dist.get_rank() if dist.is_initialized() else 1), **kwargs)

    return clip


def _outside_region(original: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return original(self, *args, **kwargs)

    return forward


def _never_synchronised(original: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.no_sync():
            return original(self, *args, **kwargs)

    return forward


def _nothing(original: Any) -> Any:
    del original
    return lambda *_, **__: None


def _half_state(original: Any) -> Any:
    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        return {name: value.half() for name, value in original(self, *args, **kwargs).items()}

    return state_dict


def _dtensor_flag(change: Callable[..., None]) -> Plant:
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


def _minimum(flag: torch.Tensor) -> None:
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)


def _on_cpu(backend: Backend) -> bool:
    return backend.device_type == "cpu"


DDP = DistributedDataParallel
INF = "ddp-inf-on-rank-1-step-1"
MAX = "parameter-outside-ddp-reduced"
FLAT = "fsdp1-FULL_SHARD-none"
SHARD_16 = "fsdp1-SHARD_GRAD_OP-fp16"

ROWS: tuple[Mutant, ...] = tuple(
    mutant(f"collective-{name}", fault, plant, case, check)
    for name, fault, plant, case, check in (
        ("sum", "DDP sums gradients", _ddp(_reduced(dist.ReduceOp.SUM)), "ddp", "check_ddp"),
        ("max", "DDP takes the largest gradient", _ddp(_reduced(dist.ReduceOp.MAX)), "ddp", "check_ddp"),
        ("halved-twice", "DDP divides by the ranks twice", _ddp(_reduced(dist.ReduceOp.SUM, 4)), "ddp", "check_ddp"),
        ("local", "DDP keeps local gradients", _ddp(lambda buffer: buffer), "ddp", "check_ddp"),
        ("local-inf", "an inf stays on its rank", _ddp(lambda buffer: buffer), INF, "check_ddp_inf"),
        (
            "inf-replaced",
            "the hook puts 0 in the place of inf",
            _ddp(lambda it: torch.nan_to_num(_mean(it), 0.0, 0.0, 0.0)),
            INF,
            "check_ddp_inf",
        ),
        (
            "clamped",
            "the hook clamps to float16's range",
            _ddp(lambda it: torch.nan_to_num(_mean(it)).clamp(-65504, 65504)),
            INF,
            "check_ddp_inf",
        ),
        (
            "never-synchronised",
            "every backward pass is under no_sync",
            replacing(DDP, "forward", _never_synchronised),
            "step-after-no-sync",
            "check_step_after_no_sync",
        ),
        (
            "accumulated-locally",
            "the last micro-batch is not synchronised",
            replacing(DDP, "forward", _never_synchronised),
            "ddp-accumulation-clean",
            "check_ddp_accumulation",
        ),
        (
            "region-left",
            "the wrapper leaves the region",
            replacing(DDP, "forward", _outside_region),
            "region-around-ddp",
            "check_region_around_ddp",
        ),
        (
            "fp16-undivided",
            "the float16 hook sums",
            _fp16_hook(lambda it: _reduced(dist.ReduceOp.SUM)(it.half()).float()),
            "fp16-hook-fits",
            "check_fp16_hook",
        ),
        (
            "fp16-in-fp32",
            "the float16 hook reduces in float32",
            _fp16_hook(_mean),
            "fp16-hook-rounding",
            "check_fp16_hook",
        ),
        (
            "fp16-in-bf16",
            "the float16 hook reduces in bfloat16",
            _fp16_hook(_low(torch.bfloat16)),
            "fp16-hook-overflow",
            "check_fp16_hook",
        ),
        (
            "fp16-clamped",
            "the float16 hook clamps",
            _fp16_hook(lambda it: _reduced(dist.ReduceOp.SUM)(it.clamp(-65504, 65504).half() / 2).float()),
            "fp16-hook-overflow",
            "check_fp16_hook",
        ),
        (
            "fp16-keeps-small",
            "the float16 hook keeps small gradients in float32",
            _fp16_hook(lambda it: torch.where(it.abs() < 1e-4, _mean(it), _low(torch.float16)(it))),
            "fp16-hook-underflow",
            "check_fp16_hook",
        ),
        (
            "fp16-wrapper-empty",
            "the float16 wrapper casts nothing",
            replacing(default_hooks, "fp16_compress_wrapper", lambda _: lambda hook: hook),
            "fp16-hook-wrapper-overflow",
            "check_fp16_hook",
        ),
        (
            "fp16-inf-hidden",
            "the float16 hook puts 0 in the place of inf",
            _fp16_hook(lambda it: torch.nan_to_num(_low(torch.float16)(it), 0.0, 0.0, 0.0)),
            "fp16-hook-scaled",
            "check_fp16_hook_scaled",
        ),
        (
            "powersgd-local",
            "PowerSGD gives local gradients",
            replacing(powerSGD_hook, "powerSGD_hook", lambda _: _hook(lambda it: it)),
            "powersgd-in-fp16",
            "check_powersgd",
        ),
        (
            "zero-not-sent",
            "ZeRO does not send its part of the weights",
            replacing(ZeroRedundancyOptimizer, "_sync_params", _nothing),
            "zero-clean",
            "check_zero",
        ),
        ("flag-not-reduced", "found_inf is not reduced", _all_reduce(_without), MAX, "check_outside_reduced"),
        ("flag-minimum", "found_inf is reduced by MIN", _all_reduce(_by_minimum), MAX, "check_outside_reduced"),
        ("flag-on-part", "rank 1 keeps its own found_inf", _all_reduce(_one_left_out), MAX, "check_outside_reduced"),
        (
            "state-not-sent",
            "rank 0's scaler state is not sent",
            replacing(dist, "broadcast_object_list", _nothing),
            "unequal-scales",
            "check_unequal_scales",
        ),
        (
            "clip-by-rank",
            "rank 1 clips to half the norm",
            replacing(nn.utils, "clip_grad_norm_", _norm_of_rank),
            "ddp-clipped",
            "check_ddp_clipped",
        ),
        (
            "clip-local",
            "clipping takes the shard's norm",
            replacing(nn.utils, "clip_grad_norm_", _local_norm),
            "clip-hsdp",
            "check_clip",
        ),
        (
            "clip-counted-twice",
            "replicas are counted twice in the norm",
            _norm(lambda norm: norm * 2**0.5),
            "clip-hsdp",
            "check_clip",
        ),
        (
            "clip-in-bf16",
            "the norm is kept in bfloat16",
            _norm(lambda norm: norm.bfloat16()),
            "clip-fsdp2",
            "check_clip",
        ),
        (
            "norm-made-finite",
            "the norm of infinite gradients is finite",
            _norm(torch.nan_to_num),
            "norm-before-a-skip",
            "check_norm_before_skip",
        ),
        (
            "policy-ignored",
            "FSDP2 ignores param_dtype",
            _policy(param_dtype=None),
            "fsdp2-policy-float16-float32",
            "check_policy",
        ),
        (
            "output-widened",
            "FSDP2 gives float32 outputs",
            _policy(output_dtype=torch.float32),
            "fsdp2-policy-bfloat16-float32",
            "check_policy",
        ),
        (
            "reduced-in-fp16",
            "FSDP2 reduces in float16",
            _policy(reduce_dtype=torch.float16),
            "fsdp2-reduction-float16-float32",
            "check_reduction",
        ),
        (
            "reduced-in-bf16",
            "FSDP2 reduces in bfloat16",
            _policy(reduce_dtype=torch.bfloat16),
            "fsdp2-reduction-float16-float32",
            "check_reduction",
        ),
        (
            "accumulated-in-bf16",
            "gradients without sync are held in bfloat16",
            _policy(reduce_dtype=torch.bfloat16),
            "fsdp2-accumulation",
            "check_accumulation",
        ),
        (
            "inputs-not-cast",
            "FSDP2 casts no inputs",
            _policy(cast_forward_inputs=False, param_dtype=None),
            "fsdp2-cast-inputs-on",
            "check_inputs",
        ),
        (
            "not-sharded",
            "the model stays as it is on each rank",
            replacing(sharded, "fully_shard", _unsharded),
            "fsdp2-inf",
            "check_fsdp2",
        ),
        (
            "dtypes-mixed",
            "a group of two dtypes is let through",
            replacing(sharded, "fully_shard", _unsharded),
            "fsdp2-one-dtype-a-group",
            "check_one_dtype",
        ),
        (
            "recomputed-in-fp32",
            "inputs of a recomputed layer are float32",
            _policy(param_dtype=None),
            "fsdp2-recompute",
            "check_recompute",
        ),
        (
            "softmax-in-fp32",
            "a policy acts as a region",
            _policy(output_dtype=torch.float32),
            "fsdp2-policy-is-no-region",
            "check_policy_is_no_region",
        ),
        (
            "sharded-not-reduced",
            "ShardedGradScaler does not reduce found_inf",
            replacing(ShardedGradScaler, "unscale_", lambda _: torch.amp.GradScaler.unscale_),
            FLAT,
            "check_fsdp1",
        ),
        ("sharded-on-part", "rank 1 keeps its own found_inf", _all_reduce(_one_left_out), SHARD_16, "check_fsdp1"),
        (
            "sharded-never-updates",
            "ShardedGradScaler keeps its scale",
            replacing(ShardedGradScaler, "update", _keeping_scale),
            FLAT,
            "check_fsdp1",
        ),
        (
            "dtensor-not-reduced",
            "found_inf of shards is not reduced",
            _dtensor_flag(lambda _: None),
            "inf-in-one-of-rows",
            "check_placed",
        ),
        (
            "dtensor-minimum",
            "found_inf of shards is reduced by MIN",
            _dtensor_flag(_minimum),
            "inf-in-one-of-columns",
            "check_placed",
        ),
        (
            "two-meshes-not-reduced",
            "found_inf of shards is not reduced",
            _dtensor_flag(lambda _: None),
            "two-meshes-experts-last",
            "check_two_meshes",
        ),
        (
            "none-is-fp32",
            "reduce_dtype=None means float16",
            _policy(reduce_dtype=torch.float16),
            "collectives-fsdp2-bfloat16-none",
            "check_collectives",
        ),
        (
            "gathered-in-fp32",
            "FSDP2 gathers float32 parameters",
            _policy(param_dtype=None, reduce_dtype=torch.float32),
            "collectives-fsdp2-float16-float32",
            "check_collectives",
        ),
        (
            "hook-in-fp32",
            "DDP's float16 hook reduces in float32",
            _fp16_hook(_mean),
            "collectives-ddp-fp16-hook",
            "check_collectives",
        ),
        (
            "sharded-on-fsdp2-never-updates",
            "ShardedGradScaler on FSDP2 keeps its scale",
            replacing(ShardedGradScaler, "update", _keeping_scale),
            "fsdp2-two-scalers",
            "check_fsdp2_sharded_scaler",
        ),
        (
            "state-in-fp16",
            "FSDP1 saves float16 weights",
            replacing(FullyShardedDataParallel, "state_dict", _half_state),
            "fsdp1-state-dict",
            "check_full_state",
        ),
        (
            "fsdp1-clip-local",
            "the wrapper clips by the shard's norm",
            replacing(
                FullyShardedDataParallel,
                "clip_grad_norm_",
                lambda _: lambda self, norm: nn.utils.clip_grad_norm_(self.parameters(), norm),
            ),
            "clip-fsdp1",
            "check_clip",
        ),
    )
) + (
    mutant(
        "collective-norm-in-fp32",
        "FSDP2 runs norms in float32 whatever the policy",
        _policy(param_dtype=None),
        "fsdp2-batch-norm-as-it-is",
        "check_batch_norm",
        applies=_on_cpu,
    ),
    mutant(
        "collective-bf16-hook-allowed",
        "DDP lets the bfloat16 hook through without NCCL",
        replacing(DDP, "_check_comm_hook", _nothing),
        "bf16-hook-refused",
        "check_bf16_hook",
        applies=_on_cpu,
    ),
)
