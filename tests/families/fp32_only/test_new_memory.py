"""What a checkpoint keeps of memory that nobody has written to is wrong every time, not only now and then."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from amp_checks import backends
from amp_checks.families.fp32_only import remedies
from amp_checks.torch_api import private

CPU = backends.backend("cpu-float16")


@pytest.mark.parametrize("way", [remedies.checkpointed, remedies.checkpointed_reentrant])
def test_new_memory_in_a_checkpoint_holds_nan(way: Any) -> None:
    x = torch.ones(1024, requires_grad=True)
    with CPU.region():
        out = way(CPU, lambda given: given * torch.empty_like(given), x)
    assert out.isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_the_flags_come_back(before: tuple[bool, bool]) -> None:
    mode, warns = before
    private._set_deterministic(mode, warn_only=warns)
    try:
        with pytest.raises(ValueError, match="stop"):
            _stops()
        after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        assert after == before
    finally:
        private._set_deterministic(False, warn_only=False)


def _stops() -> None:
    with private.new_memory_is_nan():
        assert torch.empty(8).isnan().all()
        raise ValueError("stop")
