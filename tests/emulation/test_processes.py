"""Programs of several processes, where the emulated device has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.multiprocessing

from amp_checks.core import NotEmulated
from amp_checks.emulation import emulate

SEEN: list[tuple[int, object, bool]] = []


def _spawn() -> Any:
    """As a program asks for it, inside: torch does not declare that it exports it."""
    return vars(torch.multiprocessing)["spawn"]


def _trains(rank: int, value: object) -> None:
    with torch.autocast("cuda"):
        low = (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype is torch.float16
    SEEN.append((rank, value, low))


@pytest.mark.parametrize("join", [True, False])
def test_the_one_process_that_is_spawned_knows_the_emulation(join: bool) -> None:
    SEEN.clear()
    with emulate("cuda"):
        context = _spawn()(_trains, args=("a",), nprocs=torch.cuda.device_count(), join=join)
        assert context is None if join else context.join()
    assert SEEN == [(0, "a", True)]


def test_more_processes_than_devices_are_refused() -> None:
    with emulate("cuda"), pytest.raises(NotEmulated, match=r"2 processes.*one device is emulated"):
        _spawn()(_trains, args=("a",), nprocs=2)
