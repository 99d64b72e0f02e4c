"""Every edit of torch's own scaler, tried on the rows of the family."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from amp_checks import backends
from amp_checks.core import Case
from amp_checks.families.scaler.calls import ConstructCase
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.suite import collect, edits, every_edit
from amp_checks.suite.edits import Edit
from amp_checks.suite.every_edit import Change, Source
from amp_checks.suite.family import Progress
from amp_checks.suite.item import Item
from amp_checks.suite.planting import Tally

MODULE = "amp_checks_edited_grad_scaler"
"""Name of the edited module while it is loaded."""


@contextmanager
def _beside_torchs(edit: Edit) -> Iterator[Change]:
    """The edited scaler takes the place of torch's in a backend; torch itself is not touched."""
    module = edits.load(edits.edited(edits.source_of(SOURCE.module), edit), MODULE)
    try:
        yield lambda backend: dataclasses.replace(backend, grad_scaler=module.GradScaler)
    finally:
        del sys.modules[MODULE]


def _items() -> list[Item]:
    found = collect.collect(backends=[backends.backend("cpu-float16")], families=["scaler"])
    cuda = collect.collect(backends=[backends.backend("emulated-cuda-float16")], families=["scaler"])
    constructed = [item for item in cuda if isinstance(item.case, ConstructCase)]  # scalers for cuda where it is
    return [item for item in found if _tells_edits(item.case)] + constructed


def _tells_edits(case: Case) -> bool:
    """Leaves out most optimizers: to a scaler they are all one of two kinds, and their rows cost most of the time."""
    return not isinstance(case, OptimizerCase) or case.optimizer == "SGD"


SOURCE = Source(
    module="torch.amp.grad_scaler",
    equivalents="scaler/equivalent_edits.json",
    plant=_beside_torchs,
    items=_items,
    note=" (torch's own tests kill 202 of 357)",  # of torch 2.13.0, of another, smaller set of edits
)


def edit_every_node(progress: Progress) -> Iterator[Tally]:
    """Try every edit of the scaler."""
    yield every_edit.try_every_edit(SOURCE, progress)
