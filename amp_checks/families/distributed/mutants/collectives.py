"""Faulty reductions, hooks, wrappers and policies."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from amp_checks.families.distributed.mutants import plants
from amp_checks.families.distributed.mutants.rows import mutant, replacing
from amp_checks.families.distributed.promises import sharded
from amp_checks.suite.planting import Mutant

DDP = DistributedDataParallel
INF = "ddp-inf-on-rank-1-step-1"
MAX = "parameter-outside-ddp-reduced"
FLAT = "fsdp1-FULL_SHARD-none"
SHARD_16 = "fsdp1-SHARD_GRAD_OP-fp16"

_ANYWHERE = tuple(
    mutant(f"collective-{name}", fault, plant, case, check)
    for name, fault, plant, case, check in (
        ("sum", "DDP sums gradients", plants.ddp(plants.reduced(dist.ReduceOp.SUM)), "ddp", "check_ddp"),
        ("max", "DDP takes the largest gradient", plants.ddp(plants.reduced(dist.ReduceOp.MAX)), "ddp", "check_ddp"),
        (
            "halved-twice",
            "DDP divides by the ranks twice",
            plants.ddp(plants.reduced(dist.ReduceOp.SUM, 4)),
            "ddp",
            "check_ddp",
        ),
        ("local", "DDP keeps local gradients", plants.ddp(lambda buffer: buffer), "ddp", "check_ddp"),
        ("local-inf", "an inf stays on its rank", plants.ddp(lambda buffer: buffer), INF, "check_ddp_inf"),
        (
            "inf-replaced",
            "the hook puts 0 in the place of inf",
            plants.ddp(lambda it: torch.nan_to_num(plants.mean(it), 0.0, 0.0, 0.0)),
            INF,
            "check_ddp_inf",
        ),
        (
            "clamped",
            "the hook clamps to float16's range",
            plants.ddp(lambda it: torch.nan_to_num(plants.mean(it)).clamp(-65504, 65504)),
            INF,
            "check_ddp_inf",
        ),
        (
            "never-synchronised",
            "every backward pass is under no_sync",
            replacing(DDP, "forward", plants.never_synchronised),
            "step-after-no-sync",
            "check_step_after_no_sync",
        ),
        (
            "accumulated-locally",
            "the last micro-batch is not synchronised",
            replacing(DDP, "forward", plants.never_synchronised),
            "ddp-accumulation-clean",
            "check_ddp_accumulation",
        ),
        (
            "region-left",
            "the wrapper leaves the region",
            replacing(DDP, "forward", plants.outside_region),
            "region-around-ddp",
            "check_region_around_ddp",
        ),
        (
            "fp16-undivided",
            "the float16 hook sums",
            plants.fp16_hook(lambda it: plants.reduced(dist.ReduceOp.SUM)(it.half()).float()),
            "fp16-hook-fits",
            "check_fp16_hook",
        ),
        (
            "fp16-in-fp32",
            "the float16 hook reduces in float32",
            plants.fp16_hook(plants.mean),
            "fp16-hook-rounding",
            "check_fp16_hook",
        ),
        (
            "fp16-in-bf16",
            "the float16 hook reduces in bfloat16",
            plants.fp16_hook(plants.low(torch.bfloat16)),
            "fp16-hook-overflow",
            "check_fp16_hook",
        ),
        (
            "fp16-clamped",
            "the float16 hook clamps",
            plants.fp16_hook(lambda it: plants.reduced(dist.ReduceOp.SUM)(it.clamp(-65504, 65504).half() / 2).float()),
            "fp16-hook-overflow",
            "check_fp16_hook",
        ),
        (
            "fp16-keeps-small",
            "the float16 hook keeps small gradients in float32",
            plants.fp16_hook(lambda it: torch.where(it.abs() < 1e-4, plants.mean(it), plants.low(torch.float16)(it))),
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
            plants.fp16_hook(lambda it: torch.nan_to_num(plants.low(torch.float16)(it), 0.0, 0.0, 0.0)),
            "fp16-hook-scaled",
            "check_fp16_hook_scaled",
        ),
        (
            "powersgd-local",
            "PowerSGD gives local gradients",
            replacing(powerSGD_hook, "powerSGD_hook", lambda _: plants.hook(lambda it: it)),
            "powersgd-in-fp16",
            "check_powersgd",
        ),
        (
            "zero-not-sent",
            "ZeRO does not send its part of the weights",
            replacing(ZeroRedundancyOptimizer, "_sync_params", plants.nothing),
            "zero-clean",
            "check_zero",
        ),
        (
            "flag-not-reduced",
            "found_inf is not reduced",
            plants.all_reduce(plants.without),
            MAX,
            "check_outside_reduced",
        ),
        (
            "flag-minimum",
            "found_inf is reduced by MIN",
            plants.all_reduce(plants.by_minimum),
            MAX,
            "check_outside_reduced",
        ),
        (
            "flag-on-part",
            "rank 1 keeps its own found_inf",
            plants.all_reduce(plants.one_left_out),
            MAX,
            "check_outside_reduced",
        ),
        (
            "state-not-sent",
            "rank 0's scaler state is not sent",
            replacing(dist, "broadcast_object_list", plants.nothing),
            "unequal-scales",
            "check_unequal_scales",
        ),
        (
            "clip-by-rank",
            "rank 1 clips to half the norm",
            replacing(nn.utils, "clip_grad_norm_", plants.norm_of_rank),
            "ddp-clipped",
            "check_ddp_clipped",
        ),
        (
            "clip-local",
            "clipping takes the shard's norm",
            replacing(nn.utils, "clip_grad_norm_", plants.local_norm),
            "clip-hsdp",
            "check_clip",
        ),
        (
            "clip-counted-twice",
            "replicas are counted twice in the norm",
            plants.norm(lambda norm: norm * 2**0.5),
            "clip-hsdp",
            "check_clip",
        ),
        (
            "clip-in-bf16",
            "the norm is kept in bfloat16",
            plants.norm(lambda norm: norm.bfloat16()),
            "clip-fsdp2",
            "check_clip",
        ),
        (
            "norm-made-finite",
            "the norm of infinite gradients is finite",
            plants.norm(torch.nan_to_num),
            "norm-before-a-skip",
            "check_norm_before_skip",
        ),
        (
            "policy-ignored",
            "FSDP2 ignores param_dtype",
            plants.policy(param_dtype=None),
            "fsdp2-policy-float16-float32",
            "check_policy",
        ),
        (
            "output-widened",
            "FSDP2 gives float32 outputs",
            plants.policy(output_dtype=torch.float32),
            "fsdp2-policy-bfloat16-float32",
            "check_policy",
        ),
        (
            "reduced-in-fp16",
            "FSDP2 reduces in float16",
            plants.policy(reduce_dtype=torch.float16),
            "fsdp2-reduction-float16-float32",
            "check_reduction",
        ),
        (
            "reduced-in-bf16",
            "FSDP2 reduces in bfloat16",
            plants.policy(reduce_dtype=torch.bfloat16),
            "fsdp2-reduction-float16-float32",
            "check_reduction",
        ),
        (
            "accumulated-in-bf16",
            "gradients without sync are held in bfloat16",
            plants.policy(reduce_dtype=torch.bfloat16),
            "fsdp2-accumulation",
            "check_accumulation",
        ),
        (
            "inputs-not-cast",
            "FSDP2 casts no inputs",
            plants.policy(cast_forward_inputs=False, param_dtype=None),
            "fsdp2-cast-inputs-on",
            "check_inputs",
        ),
        (
            "not-sharded",
            "the model stays as it is on each rank",
            replacing(sharded, "fully_shard", plants.unsharded),
            "fsdp2-inf",
            "check_fsdp2",
        ),
        (
            "dtypes-mixed",
            "a group of two dtypes is let through",
            replacing(sharded, "fully_shard", plants.unsharded),
            "fsdp2-one-dtype-a-group",
            "check_one_dtype",
        ),
        (
            "recomputed-in-fp32",
            "inputs of a recomputed layer are float32",
            plants.policy(param_dtype=None),
            "fsdp2-recompute",
            "check_recompute",
        ),
        (
            "softmax-in-fp32",
            "a policy acts as a region",
            plants.policy(output_dtype=torch.float32),
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
        (
            "sharded-on-part",
            "rank 1 keeps its own found_inf",
            plants.all_reduce(plants.one_left_out),
            SHARD_16,
            "check_fsdp1",
        ),
        (
            "sharded-never-updates",
            "ShardedGradScaler keeps its scale",
            replacing(ShardedGradScaler, "update", plants.keeping_scale),
            FLAT,
            "check_fsdp1",
        ),
        (
            "dtensor-not-reduced",
            "found_inf of shards is not reduced",
            plants.dtensor_flag(lambda _: None),
            "inf-in-one-of-rows",
            "check_placed",
        ),
        (
            "dtensor-minimum",
            "found_inf of shards is reduced by MIN",
            plants.dtensor_flag(plants.minimum),
            "inf-in-one-of-columns",
            "check_placed",
        ),
        (
            "two-meshes-not-reduced",
            "found_inf of shards is not reduced",
            plants.dtensor_flag(lambda _: None),
            "two-meshes-experts-last",
            "check_two_meshes",
        ),
        (
            "none-is-fp32",
            "reduce_dtype=None means float16",
            plants.policy(reduce_dtype=torch.float16),
            "collectives-fsdp2-bfloat16-none",
            "check_collectives",
        ),
        (
            "gathered-in-fp32",
            "FSDP2 gathers float32 parameters",
            plants.policy(param_dtype=None, reduce_dtype=torch.float32),
            "collectives-fsdp2-float16-float32",
            "check_collectives",
        ),
        (
            "hook-in-fp32",
            "DDP's float16 hook reduces in float32",
            plants.fp16_hook(plants.mean),
            "collectives-ddp-fp16-hook",
            "check_collectives",
        ),
        (
            "sharded-on-fsdp2-never-updates",
            "ShardedGradScaler on FSDP2 keeps its scale",
            replacing(ShardedGradScaler, "update", plants.keeping_scale),
            "fsdp2-two-scalers",
            "check_fsdp2_sharded_scaler",
        ),
        (
            "state-in-fp16",
            "FSDP1 saves float16 weights",
            replacing(FullyShardedDataParallel, "state_dict", plants.half_state),
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
)

ROWS: tuple[Mutant, ...] = (
    *_ANYWHERE,
    mutant(
        "collective-norm-in-fp32",
        "FSDP2 runs norms in float32 whatever the policy",
        plants.policy(param_dtype=None),
        "fsdp2-batch-norm-as-it-is",
        "check_batch_norm",
        applies=plants.on_cpu,
    ),
    mutant(
        "collective-bf16-hook-allowed",
        "DDP lets the bfloat16 hook through without NCCL",
        replacing(DDP, "_check_comm_hook", plants.nothing),
        "bf16-hook-refused",
        "check_bf16_hook",
        applies=plants.on_cpu,
    ),
)
