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
from amp_checks.audit import AuditCase, Report, Severity, audit
from amp_checks.records import fixtures
from amp_checks.reference.model import SimpleTextModel
from amp_checks.suite.planting import Mutant, Tally
from amp_checks.torch_api.backend import Backend

Progress = Callable[[str], None]
FOLDER = "audit"
TWO_ERRORS = {"log_of_vanished_eps"}
"""A logarithm of 0 in 16 bits; and one of almost 0, whose gradient rounding makes 1.6 % too large."""


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
        sys.path.insert(0, str(folder))  # no package: a fixture is a program, not part of this one
    for path in sorted(folder.glob("loops_*.py")):
        importlib.import_module(path.stem)
    found: list[Any] = importlib.import_module("audit_pairs").PAIRS
    return found


def audited(pair: Any, backend: str, *, fault: bool) -> Report:
    """The report on a faulty loop, or on its corrected twin."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(AuditCase(id=pair.id, build=pair.twin(fault=fault)), backends.backend(backend))


def missed(pair: Any, report: Report) -> str:
    """What the report on a faulty loop gets wrong: empty where the fault is found and placed."""
    found = [one for one in report.diagnostics if one.rule == pair.rule]
    lines = {int(one.where.rpartition(":")[2]) for one in found if one.where}
    if not found:
        return "not found"
    if pair.placed and not lines & pair.lines():
        return "placed on another line"
    return "" if pair.module in {None, *(one.module for one in found)} else "placed in another module"


def alarms_in(report: Report) -> list[str]:
    """The rules of errors and warnings."""
    return [one.rule for one in report.diagnostics if one.severity is not Severity.NOTE]


def plant_every_loop(progress: Progress) -> Iterator[Tally]:
    """Each faulty loop on each backend that it names: found and placed, its corrected twin without alarm."""
    began = time.perf_counter()
    survived, total = [], 0
    progress(f"audit: {len(pairs())} faulty loops and their corrected twins")
    for pair in pairs():
        for name in pair.backends:
            total += 1
            wrong = missed(pair, audited(pair, name, fault=True))
            if not wrong and (rules := alarms_in(audited(pair, name, fault=False))):
                wrong = f"its corrected twin raises {', '.join(rules)}"
            if wrong:
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
