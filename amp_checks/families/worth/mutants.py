"""Planted faults that cost what AMP saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch

from amp_checks.families.worth.cases import TwiceUsed
from amp_checks.reference.language import Block
from amp_checks.reference.model import SimpleTextModel
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

Forward = Callable[[Any, torch.Tensor], torch.Tensor]


def _forward(owner: type, change: Callable[[Backend, Forward, Any, torch.Tensor], torch.Tensor]) -> Any:
    def plant(backend: Backend) -> AbstractContextManager[Backend]:
        original = owner.forward  # type: ignore[attr-defined]

        def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
            if not torch.is_autocast_enabled(backend.device_type):
                result: torch.Tensor = original(module, x)
                return result
            return change(backend, original, module, x)

        return _patched(owner, forward, backend)

    return plant


@contextmanager
def _patched(owner: type, forward: Any, backend: Backend) -> Iterator[Backend]:
    with mock.patch.object(owner, "forward", forward):
        yield backend


def _disabled(backend: Backend, forward: Forward, module: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(backend.device_type, enabled=False):
        return forward(module, x.float())


def _hidden_in_float32(backend: Backend, _: Forward, module: Any, x: torch.Tensor) -> torch.Tensor:
    del backend
    hidden = torch.relu(module.layer(x).float())
    out: torch.Tensor = module.layer(torch.sigmoid(hidden))
    return out


def _product_in_float32(backend: Backend, forward: Forward, module: Any, x: torch.Tensor) -> torch.Tensor:
    """Weights are multiplied outside of the region, and nothing of it is kept."""
    with torch.autocast(backend.device_type, enabled=False), torch.no_grad():
        torch.mm(module.fc2.weight, module.fc1.weight)
    return forward(module, x)


def _kept_for_nothing(backend: Backend, forward: Forward, module: Any, x: torch.Tensor) -> torch.Tensor:
    """The square of weights is differentiated by a factor of zero."""
    del backend
    kept = (module.fc1.weight.repeat(4, 1) * 2.0).square().sum()
    out: torch.Tensor = forward(module, x) + 0.0 * kept
    return out


def _back_and_forth(backend: Backend, forward: Forward, module: Any, x: torch.Tensor) -> torch.Tensor:
    return forward(module, x).float().to(backend.low_dtype)


def _double_block(backend: Backend, forward: Forward, module: Any, x: torch.Tensor) -> torch.Tensor:
    """What attention keeps is kept a second time."""
    del backend
    return (forward(module, x) + forward(module, x)) / 2


@contextmanager
def _cache_off(backend: Backend) -> Iterator[Backend]:
    enter: Callable[[Any], Any] = torch.autocast.__enter__

    def without_cache(region: Any) -> Any:
        entered = enter(region)
        torch.set_autocast_cache_enabled(False)
        return entered

    with mock.patch.object(torch.autocast, "__enter__", without_cache):
        yield backend


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="worth-model-outside-autocast",
        family="worth",
        fault="the model switches autocast off around itself",
        plant=_forward(SimpleTextModel, _disabled),
        case="reference-model",
        killed_by=("check_saved_bytes", "check_products_in_16_bits", "check_casts"),
    ),
    Mutant(
        id="worth-product-in-float32",
        family="worth",
        fault="weights are multiplied in float32 in each forward",
        plant=_forward(SimpleTextModel, _product_in_float32),
        case="reference-model",
        killed_by=("check_products_in_16_bits",),
    ),
    Mutant(
        id="worth-kept-for-nothing",
        family="worth",
        fault="a term without effect keeps float32 values for backward",
        plant=_forward(SimpleTextModel, _kept_for_nothing),
        case="reference-model",
        killed_by=("check_saved_bytes",),
    ),
    Mutant(
        id="worth-casts-back-and-forth",
        family="worth",
        fault="the model's output is cast to float32 and back",
        plant=_forward(SimpleTextModel, _back_and_forth),
        case="reference-model",
        killed_by=("check_casts",),
    ),
    Mutant(
        id="worth-hidden-in-float32",
        family="worth",
        fault="activations between two layers are float32",
        plant=_forward(TwiceUsed, _hidden_in_float32),
        case="layer-used-twice",
        killed_by=("check_saved_bytes", "check_casts"),
    ),
    Mutant(
        id="worth-cache-off",
        family="worth",
        fault="autocast casts a weight anew each time it is used",
        plant=_cache_off,
        case="layer-used-twice",
        killed_by=("check_casts",),
    ),
    Mutant(
        id="worth-blocks-run-twice",
        family="worth",
        fault="under AMP each block of the transformer is computed twice",
        plant=_forward(Block, _double_block),
        case="transformer",
        killed_by=("check_saved_bytes", "check_products_in_16_bits"),
    ),
)
