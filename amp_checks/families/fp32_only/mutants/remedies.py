"""Wrong remedies for an op that lacks 16 bits, as users write them; each stands for the right one when planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from amp_checks.families.fp32_only import remedies as right
from amp_checks.families.fp32_only.mutants.faults import Plant, map_tensors
from amp_checks.torch_api.backend import Backend

Remedy = Callable[..., Any]


def float_in_enabled_region(_: Backend, op: Remedy, *tensors: torch.Tensor) -> Any:
    """``float()`` without a disabled region: an op that autocast lowers is lowered again."""
    return op(*(tensor.float() for tensor in tensors))


def no_cast(backend: Backend, op: Remedy, *tensors: torch.Tensor) -> Any:
    """A disabled region without the cast: the input is in the low dtype still."""
    with backend.region(enabled=False):
        return op(*(tensor.to(backend.low_dtype) for tensor in tensors))


def result_cast(backend: Backend, op: Remedy, *tensors: torch.Tensor) -> Any:
    """The result is cast instead of the input."""
    with backend.region(enabled=False):
        return map_tensors(torch.Tensor.float, op(*(tensor.to(backend.low_dtype) for tensor in tensors)))


def low_on_the_way_in(backend: Backend, op: Remedy, *tensors: torch.Tensor) -> Any:
    """``half()`` on the way in: an input that was FP32 has lost its bits when ``float()`` comes."""
    with backend.region(enabled=False):
        return op(*(tensor.to(backend.low_dtype).float() for tensor in tensors))


WRONG: dict[str, Remedy] = {
    "float in the enabled region": float_in_enabled_region,
    "disabled region without the cast": no_cast,
    "result cast instead of the input": result_cast,
    "low dtype on the way in": low_on_the_way_in,
}
"""What ``fixtures/fp32_only/wrong_remedies.json`` gives a verdict on, op by op."""


def planted(wrong: Remedy) -> Plant:
    """The wrong remedy is used for the right one."""

    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        with mock.patch.object(right, "disabled_region", wrong):
            yield backend

    return plant
