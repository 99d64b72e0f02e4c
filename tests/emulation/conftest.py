"""Fixtures of the emulation's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from amp_checks.emulation import emulate


@pytest.fixture
def emulated_cuda() -> Iterator[None]:
    """A seeded test inside emulated CUDA."""
    torch.manual_seed(0)
    with emulate("cuda"):
        yield
