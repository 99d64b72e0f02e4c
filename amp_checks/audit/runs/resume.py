"""What survives a checkpoint: the user's own ``save`` and ``load``, one against the other."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from amp_checks.audit.case import AuditCase, Training, describe, stepper
from amp_checks.audit.watching.watch import Watch
from amp_checks.torch_api.backend import Backend

LATE_SCALE = 2.0**7
"""A loss scale that no fresh scaler starts with: it stands for one that training has found."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What came back in a fresh program that loaded the checkpoint of a trained one.

    Attributes:
        weightless: what was saved holds tensors and numbers, and no weights of the model.
        error: what saving or loading raised, or None.
        scales: loss scale saved and loaded, for each enabled scaler.
        lost: names of parameters that differ after loading.
        overwritten: names of parameters that the next step puts back nearer to what they were before loading.
    """

    error: str | None = None
    weightless: bool = False
    scales: tuple[tuple[float, float], ...] = ()
    lost: tuple[str, ...] = ()
    overwritten: tuple[str, ...] = ()


def resume(case: AuditCase, backend: Backend, trained: Training, made_scalers: Sequence[Any]) -> Resumed | None:
    """Save the trained program, load it into a fresh one, and train that for one step; None without ``save``."""
    if trained.save is None:
        return None
    scalers = [scaler for scaler in made_scalers if scaler.is_enabled()]
    for scaler in scalers:
        scaler.update(LATE_SCALE)
    try:
        saved = _weights(trained)
        state = copy.deepcopy(trained.save())
        watch = Watch(ops=False)
        with watch.installed():
            fresh = case.training(backend)
            first = _weights(fresh)
            assert fresh.load is not None
            fresh.load(state)
            loaded = _weights(fresh)
            fresh_scalers = [scaler for scaler in watch.state.scalers if scaler.is_enabled()]
            scales = tuple((old.get_scale(), new.get_scale()) for old, new in zip(scalers, fresh_scalers, strict=False))
            watch.know(fresh)
            next(iter(stepper(fresh, backend)()), None)
        after = _weights(fresh)
    except Exception as error:  # noqa: BLE001 - whatever the user's save and load raise is what is audited
        return Resumed(error=describe(error))
    return Resumed(
        scales=scales,
        weightless=not any(_holds(state, value) for value in saved.values()),
        lost=tuple(name for name, value in saved.items() if name in loaded and not _same(value, loaded[name])),
        overwritten=tuple(
            name for name in loaded if name in first and _went_back(first[name], loaded[name], after[name])
        ),
    )


def _weights(training: Training) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in training.named_parameters().items()}


def _holds(state: Any, value: torch.Tensor) -> bool:
    """Whether nested containers hold that tensor, or anything that may: a module, a file, bytes."""
    if isinstance(state, dict):
        return any(_holds(item, value) for item in state.values())
    if isinstance(state, list | tuple | set):
        return any(_holds(item, value) for item in state)
    if isinstance(state, torch.Tensor):
        return state.shape == value.shape and torch.allclose(state.double().cpu(), value.double().cpu(), equal_nan=True)
    return not isinstance(state, int | float | str | None)


def _same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=0, atol=0, equal_nan=True)


def _went_back(first: torch.Tensor, loaded: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a step moved a parameter most of the way from what was loaded to what was there before.

    The step that is made from there besides leads anywhere: what it adds across the way counts for less.
    """
    way, there = (loaded.double() - first.double()).flatten(), (after.double() - first.double()).flatten()
    length = way.norm()
    return bool(length > 0 and way @ there < 0.5 * length**2 and there.norm() < 0.75 * length)
