"""Faulty scalers: one rank's scaler, or that of all ranks, departs from torch's in one way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from amp_checks.families.distributed.mutants.rows import Plant, mutant
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend


def _on_rank_1(**changed: Any) -> Plant:
    """Rank 1's scaler has other settings."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        def factory(device: str, /, **settings: Any) -> Any:
            return torch.amp.GradScaler(device, **(settings | (changed if _rank() == 1 else {})))

        yield dataclasses.replace(backend, grad_scaler=factory)

    return plant


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _scaler(kind: type[torch.amp.GradScaler], *, rank: int | None = None) -> Plant:
    """A class of scalers, on one rank or on all."""

    def plant(backend: Backend) -> AbstractContextManager[Backend]:
        return _planted(backend)

    @contextmanager
    def _planted(backend: Backend) -> Iterator[Backend]:
        def factory(device: str, /, **settings: Any) -> Any:
            chosen = kind if rank is None or _rank() == rank else torch.amp.GradScaler
            return chosen(device, **settings)

        yield dataclasses.replace(backend, grad_scaler=factory)

    return plant


class _NeverSkips(torch.amp.GradScaler):
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        super().step(_Idle(optimizer))  # type: ignore[arg-type]
        return optimizer.step(*args, **kwargs)


class _Idle:
    """An optimizer that steps nowhere."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.param_groups = optimizer.param_groups

    def step(self) -> None:
        return None


class _NeverSteps(torch.amp.GradScaler):
    def step(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> Any:
        return super().step(_Idle(optimizer))  # type: ignore[arg-type]


class _NeverUpdates(torch.amp.GradScaler):
    def update(self, new_scale: Any = None) -> None:
        before = self.state_dict()
        super().update(new_scale)
        self.load_state_dict(before)


class _ForgetsState(torch.amp.GradScaler):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        del state_dict


class _ForgetsScale(torch.amp.GradScaler):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"scale": self.get_scale()})


class _ForgetsTracker(torch.amp.GradScaler):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"_growth_tracker": 1})


class _DividesByRanks(torch.amp.GradScaler):
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(dist.get_world_size() if dist.is_initialized() else 1)
        return super().step(optimizer, *args, **kwargs)


class _HidesInf(torch.amp.GradScaler):
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        return super().step(optimizer, *args, **kwargs)


class _UpdatesBeforeStep(torch.amp.GradScaler):
    """Without `unscale_` before, the inverse of a scale that has changed since the backward pass is used."""

    def scale(self, outputs: Any) -> Any:
        scaled = super().scale(outputs)
        assert self._scale is not None
        self._scale = self._scale * 2.0
        return scaled


class _UnscalesAgain(torch.amp.GradScaler):
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.get_scale())


INF = "ddp-inf-on-rank-1-step-1"

ROWS: tuple[Mutant, ...] = tuple(
    mutant(f"ranks-{name}", fault, plant, case, check)
    for name, fault, plant, case, check in (
        ("other-scale", "rank 1 starts with another scale", _on_rank_1(init_scale=4.0), "ddp", "check_ddp"),
        ("other-interval", "rank 1 grows its scale at every step", _on_rank_1(growth_interval=1), "ddp", "check_ddp"),
        ("other-growth", "rank 1 grows its scale by 4", _on_rank_1(growth_factor=4.0), "ddp", "check_ddp"),
        ("other-backoff", "rank 1 backs off to a quarter", _on_rank_1(backoff_factor=0.25), INF, "check_ddp_inf"),
        (
            "one-disabled",
            "rank 1's scaler is disabled",
            _on_rank_1(enabled=False),
            "step-after-no-sync",
            "check_step_after_no_sync",
        ),
        ("one-never-skips", "rank 1 steps in spite of an inf", _scaler(_NeverSkips, rank=1), INF, "check_ddp_inf"),
        ("none-skips", "no rank skips", _scaler(_NeverSkips), INF, "check_ddp_inf"),
        ("one-never-steps", "rank 1 skips every step", _scaler(_NeverSteps, rank=1), "ddp", "check_ddp"),
        ("one-never-updates", "rank 1 keeps scale and tracker", _scaler(_NeverUpdates, rank=1), INF, "check_ddp_inf"),
        ("none-updates", "no rank changes scale and tracker", _scaler(_NeverUpdates), "ddp", "check_ddp"),
        (
            "one-forgets-state",
            "rank 1 does not load the state",
            _scaler(_ForgetsState, rank=1),
            "unequal-scales",
            "check_unequal_scales",
        ),
        (
            "one-forgets-scale",
            "rank 1 loads all but the scale",
            _scaler(_ForgetsScale, rank=1),
            "unequal-scales",
            "check_unequal_scales",
        ),
        (
            "one-forgets-tracker",
            "rank 1 loads another tracker",
            _scaler(_ForgetsTracker, rank=1),
            "unequal-scales",
            "check_unequal_scales",
        ),
        ("resume-forgets-state", "a resumed scaler starts anew", _scaler(_ForgetsState), "resumed", "check_resumed"),
        (
            "resume-forgets-on-one",
            "rank 1's resumed scaler starts anew",
            _scaler(_ForgetsState, rank=1),
            "resumed",
            "check_resumed",
        ),
        (
            "divided-again",
            "averaged gradients are divided by the ranks again",
            _scaler(_DividesByRanks),
            "ddp",
            "check_ddp",
        ),
        ("inf-hidden", "rank 1 puts 0 in the place of inf", _scaler(_HidesInf, rank=1), INF, "check_ddp_inf"),
        (
            "updated-before-step",
            "the scale changes between backward and step",
            _scaler(_UpdatesBeforeStep, rank=1),
            "ddp",
            "check_ddp",
        ),
        (
            "changed-in-accumulation",
            "the scale changes between micro-batches",
            _scaler(_UpdatesBeforeStep),
            "ddp-accumulation-clean",
            "check_ddp_accumulation",
        ),
        (
            "unscaled-twice",
            "rank 1 clips gradients that are unscaled twice",
            _scaler(_UnscalesAgain, rank=1),
            "ddp-clipped",
            "check_ddp_clipped",
        ),
        (
            "fsdp2-one-never-skips",
            "rank 1 steps its shard in spite of an inf",
            _scaler(_NeverSkips, rank=1),
            "fsdp2-inf",
            "check_fsdp2",
        ),
        (
            "fused-one-never-updates",
            "rank 1 of fused Adam keeps its scale",
            _scaler(_NeverUpdates, rank=1),
            "fsdp2-fused-adam",
            "check_fsdp2_fused",
        ),
        (
            "hsdp-one-backs-off-more",
            "one replica backs off to a quarter",
            _on_rank_1(backoff_factor=0.25),
            "hsdp",
            "check_hsdp",
        ),
        (
            "checkpoint-one-never-steps",
            "rank 1 skips every step",
            _scaler(_NeverSteps, rank=1),
            "ddp-checkpoint-not-reentrant",
            "check_ddp_checkpoint",
        ),
        (
            "branch-one-backs-off-more",
            "rank 1 backs off to a quarter",
            _on_rank_1(backoff_factor=0.25),
            "ddp-branch-of-one-rank",
            "check_ddp_branch",
        ),
        ("options-none-skips", "no rank skips", _scaler(_NeverSkips), "ddp-options-bucket-view", "check_ddp_options"),
        (
            "empty-shard-grows",
            "the rank with an empty shard does not back off",
            _on_rank_1(backoff_factor=0.75),
            "fsdp2-empty-shard",
            "check_empty_shard",
        ),
        (
            "zero-one-never-updates",
            "rank 1 keeps scale and tracker",
            _scaler(_NeverUpdates, rank=1),
            "zero-inf",
            "check_zero",
        ),
        (
            "two-meshes-one-disabled",
            "rank 3's scaler never backs off",
            _scaler(_NeverUpdates, rank=3),
            "two-meshes-experts-last",
            "check_two_meshes",
        ),
    )
)
