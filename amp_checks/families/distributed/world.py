"""Ranks: one program, run by several threads or several processes at once.

`threads` takes milliseconds and shows all that values can show. `processes` takes seconds and shows what threads do
not: a rank that dies, real gloo. Both give what each rank returned, in the order of ranks, and both end with one error
that names the rank where one failed.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from amp_checks import backends
from amp_checks.core import NotEmulated, Raised, SuiteError, first_line
from amp_checks.torch_api import private_ranks
from amp_checks.torch_api.backend import Backend

T = TypeVar("T")
Program = Callable[[int, Backend], T]
"""What each rank runs: rank and backend -> plain values."""

TIME_LIMIT = 60.0
"""Seconds after which a rank that has not returned is taken to hang."""


class RankFailed(SuiteError):
    """A rank died, hung, or the suite's own code failed on it; the message names the rank."""


def threads(size: int, program: Program[T], backend: Backend, *, time_limit: float = TIME_LIMIT) -> list[T]:
    """Run the program on ``size`` ranks, each a thread, within ``time_limit`` seconds.

    Raises:
        Raised: the code under test raised on a rank; its subject names the lowest such rank.
        RankFailed: a rank did not return in time, or the suite's own code raised on it.
    """
    returned: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    store = dist.HashStore()  # type: ignore[attr-defined]

    def work(rank: int) -> None:
        try:
            private_ranks.join_group(rank, size, store)
            with backend.activate():
                returned[rank] = program(rank, backend)
        except SystemExit:  # another rank failed; its own error is recorded
            pass
        except BaseException as error:  # noqa: BLE001 - a thread must not end unseen
            errors[rank] = error
            private_ranks.end_waiting(error)
        finally:
            private_ranks.leave_group()

    # Layers are initialized at random before their weights are set; the ranks share the process's random state.
    with torch.random.fork_rng(devices=[]), private_ranks.threaded_group():
        ranks = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + time_limit
        for rank in ranks:
            rank.join(max(0.0, end - time.monotonic()))
        late = [number for number, rank in enumerate(ranks) if rank.is_alive()]
        if late and not errors:
            private_ranks.end_waiting(TimeoutError())
            for rank in ranks:
                rank.join(1.0)
            late = [number for number in late if number not in errors and ranks[number].is_alive()] or late
    if errors:
        rank_, error = min(errors.items())
        raise _named(rank_, error)
    if late:
        raise RankFailed(f"rank {late[0]} of {size} did not return within {time_limit:g} s")
    return [returned[rank] for rank in range(size)]


def _named(rank: int, error: BaseException) -> BaseException:
    if isinstance(error, Raised):
        return Raised(f"rank {rank}: {error.subject}", error.error)
    if isinstance(error, NotEmulated):
        return error
    failure = RankFailed(f"rank {rank}: {type(error).__name__}: {first_line(error)}")
    failure.__cause__ = error
    return failure


def processes(size: int, program: Program[T], backend: Backend, *, time_limit: float = TIME_LIMIT) -> list[T]:
    """Run the program, a function of a module, on ``size`` ranks, each a process with gloo.

    They meet through a file in a folder that is removed afterwards, so no port is taken.

    Raises:
        RankFailed: a rank raised, died or did not return within ``time_limit`` seconds; all processes are ended.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends: dict[Connection, int] = {}
        ranks = []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (rank, size, program, backend.id, str(Path(folder) / "store"), theirs, time_limit)
            process = context.Process(target=_process, args=arguments, daemon=True)
            process.start()
            theirs.close()
            ends[ours] = rank
            ranks.append(process)
        try:
            return _collect(ends, size, time_limit)
        finally:
            for process in ranks:
                process.join(0.5)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()
            for end in ends:
                end.close()


def _collect(ends: dict[Connection, int], size: int, time_limit: float) -> list[Any]:
    returned: dict[int, Any] = {}
    waiting = dict(ends)
    until = time.monotonic() + time_limit
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
        if not ready:
            raise RankFailed(f"rank {min(waiting.values())} of {size} did not return within {time_limit:g} s")
        for end in ready:
            assert isinstance(end, Connection)
            rank = waiting.pop(end)
            try:
                error, value = end.recv()
            except EOFError:
                raise RankFailed(f"rank {rank} of {size} died before it returned") from None
            if error:
                raise RankFailed(f"rank {rank} of {size}: {error}")
            returned[rank] = value
    return [returned[rank] for rank in range(size)]


def _process(
    rank: int, size: int, program: Program[Any], backend: str, store: str, end: Connection, time_limit: float
) -> None:
    torch.set_num_threads(1)
    try:
        limit = timedelta(seconds=time_limit)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
        found = backends.backend(backend)
        with found.activate():
            value = program(rank, found)
        dist.destroy_process_group()
        end.send(("", value))
    except Exception as error:  # noqa: BLE001 - sent to who waits for it
        end.send((f"{type(error).__name__}: {first_line(error)}", None))
