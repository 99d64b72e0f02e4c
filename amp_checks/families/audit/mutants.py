"""Planted faults around a user's training step; and, in bulk, every faulty loop that ships: all must be placed."""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, audit
from amp_checks.records import fixtures
from amp_checks.reference.model import SimpleTextModel
from amp_checks.suite.planting import Mutant, Tally
from amp_checks.torch_api.backend import Backend

Progress = Callable[[str], None]
FOLDER = "audit"


def _scaled(backend: Backend) -> bool:
    return backend.low_dtype is torch.float16


def _without(owner: Any, name: str) -> Callable[[Backend], AbstractContextManager[Backend]]:
    @contextmanager
    def plant(backend: Backend) -> Iterator[Backend]:
        with mock.patch.object(owner, name, return_value=None):
            yield backend

    return plant


@contextmanager
def _loss_times(backend: Backend) -> Iterator[Backend]:
    """A loss that is scaled by 1.019 times what its gradients are unscaled by."""
    scale = torch.amp.GradScaler.scale

    def off(self: Any, outputs: Any) -> Any:
        return scale(self, outputs * 1.019 if self.is_enabled() else outputs)

    with mock.patch.object(torch.amp.GradScaler, "scale", off):
        yield backend


@contextmanager
def _output_times(backend: Backend) -> Iterator[Backend]:
    forward = SimpleTextModel.forward

    def off(self: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = forward(self, x)
        return out * 1.05 if torch.is_autocast_enabled(backend.device_type) else out

    with mock.patch.object(SimpleTextModel, "forward", off):
        yield backend


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="audited-step-never-unscales",
        family="audit",
        fault="unscale_ does nothing, so the step clips gradients that are still scaled",
        plant=_without(torch.amp.GradScaler, "unscale_"),
        case="reference",
        killed_by=("check_training_step",),
        applies=_scaled,
    ),
    Mutant(
        id="audited-model-off-under-autocast",
        family="audit",
        fault="the model's output is 5 % too large where autocast is on",
        plant=_output_times,
        case="reference",
        killed_by=("check_training_step",),
    ),
    Mutant(
        id="audited-step-never-updates",
        family="audit",
        fault="the scaler is never updated",
        plant=_without(torch.amp.GradScaler, "update"),
        case="reference",
        killed_by=("check_training_step",),
        applies=_scaled,
    ),
    Mutant(
        id="audited-loss-off-by-two-percent",
        family="audit",
        fault="the loss is 1.9 % larger under AMP, and its gradients with it",
        plant=_loss_times,
        case="reference",
        killed_by=("check_training_step",),
        applies=_scaled,
    ),
)


def pairs() -> list[Any]:
    """The faulty loops of ``fixtures/audit``, each with its corrected twin, in the order of their files."""
    folder = fixtures.fixture(FOLDER)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # no package: a fixture is a program of its own
    for path in sorted(folder.glob("loops_*.py")):
        importlib.import_module(path.stem)
    found: list[Any] = importlib.import_module("audit_pairs").PAIRS
    return found


def missed(pair: Any, backend: Backend) -> str:
    """What the audit gets wrong about a pair: empty where the fault is found and placed, and its twin left in peace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faulty = audit(AuditCase(id=pair.id, build=pair.twin(fault=True)), backend)
        found = [one for one in faulty.diagnostics if one.rule == pair.rule]
        if not found:
            return "not found"
        lines = {int(one.where.rpartition(":")[2]) for one in found if one.where}
        if pair.placed and not lines & pair.lines():
            return "placed on another line"
        if pair.module is not None and pair.module not in {one.module for one in found}:
            return "placed in another module"
        healthy = audit(AuditCase(id=pair.id, build=pair.twin(fault=False)), backend)
        alarms = [one.rule for one in healthy.diagnostics if one.severity is not Severity.NOTE]
    return f"its corrected twin raises {', '.join(alarms)}" if alarms else ""


def plant_every_loop(progress: Progress) -> Iterator[Tally]:
    """Each faulty loop on each backend that it names: found by its rule, placed, and its corrected twin in peace."""
    began = time.perf_counter()
    survived, total = [], 0
    progress(f"audit: {len(pairs())} faulty loops and their corrected twins")
    for pair in pairs():
        for name in pair.backends:
            total += 1
            if wrong := missed(pair, backends.backend(name)):
                survived.append(f"{pair.id} on {name} ({wrong})")
                progress(f"SURVIVED {survived[-1]}")
    yield Tally(
        kind="faulty training loops, and their twins",
        total=total,
        by_running=total - len(survived),
        survived=tuple(survived),
        seconds=time.perf_counter() - began,
    )


BULK = (plant_every_loop,)
