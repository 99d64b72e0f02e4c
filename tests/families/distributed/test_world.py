"""Ranks as threads and as processes: what they give, and what becomes of one that fails."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

from amp_checks import backends
from amp_checks.core import Raised, attempt
from amp_checks.families.distributed import training, world
from amp_checks.torch_api.backend import Backend

CPU = backends.backend("cpu-float16")


def rank_and_sum(rank: int, _: Backend) -> tuple[int, float]:
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    return rank, total.item()


def test_threads_give_what_each_rank_returned_in_order_and_leave_no_group() -> None:
    assert world.threads(3, rank_and_sum, CPU) == [(0, 3.0), (1, 3.0), (2, 3.0)]
    assert not dist.is_initialized()


def fails(rank: int, _: Backend) -> float:
    if rank == 1:
        raise ValueError("no data")
    return rank_and_sum(rank, CPU)[1]


def test_a_thread_that_raises_ends_all_and_is_named() -> None:
    with pytest.raises(world.RankFailed, match="rank 1: ValueError: no data"):
        world.threads(2, fails, CPU)
    assert world.threads(2, rank_and_sum, CPU) == [(0, 1.0), (1, 1.0)]


def faulty(rank: int, _: Backend) -> None:
    if rank == 1:
        attempt("step", int, "x")
    dist.barrier()


def test_code_under_test_that_raises_on_a_thread_names_the_rank() -> None:
    with pytest.raises(Raised, match="rank 1: step: ValueError"):
        world.threads(2, faulty, CPU)


def leaves_early(rank: int, _: Backend) -> None:
    if rank == 0:
        dist.barrier()


def test_a_thread_that_waits_for_ever_is_named() -> None:
    before = threading.active_count()
    with pytest.raises(world.RankFailed, match=r"rank 0 of 2 did not return within 0\.5 s"):
        world.threads(2, leaves_early, CPU, time_limit=0.5)
    assert threading.active_count() == before
    assert world.threads(2, rank_and_sum, CPU) == [(0, 1.0), (1, 1.0)]


def dies(rank: int, _: Backend) -> None:
    if rank == 1:
        os._exit(3)
    dist.barrier()


def sleeps(rank: int, _: Backend) -> None:
    if rank == 1:
        time.sleep(600)


@pytest.mark.parametrize(
    ("program", "message", "limit"),
    [
        (dies, "rank 1 of 2 died before it returned|rank 0 of 2: ", 60),
        (sleeps, "rank 1 of 2 did not return within 20 s", 20),
        (fails, "rank 1 of 2: ValueError: no data|rank 0 of 2: ", 60),
    ],
)
def test_a_process_that_fails_is_one_error_and_leaves_nothing(
    program: world.Program[None], message: str, limit: float
) -> None:
    with pytest.raises(world.RankFailed, match=message):
        world.processes(2, program, CPU, time_limit=limit)
    assert multiprocessing.active_children() == []


def test_processes_with_gloo_and_threads_end_training_alike() -> None:
    program = functools.partial(training.train, plan=training.Plan(bad=(1, 1)))
    assert world.processes(2, program, CPU) == world.threads(2, program, CPU)
