"""What a case and an ignore list may hold besides the plain: iterators, functions, numbers that begin alike."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, Training, audit
from amp_checks.audit.finding import Diagnostic
from amp_checks.audit.ignore import Ignored
from amp_checks.audit.runs.start import start_of
from amp_checks.core import UsageError

CPU = backends.backend("cpu-float16")


def _case(**given: Any) -> AuditCase:
    fields = {"model": nn.Linear(2, 2), "batches": [torch.ones(1, 2)], "step": print}
    return AuditCase(id="mine.py:case", build=lambda: fields | given)


def test_batches_of_an_iterator_are_listed() -> None:
    batches: Any = _case(batches=(torch.full((1, 2), float(number)) for number in range(3))).training(CPU).batches
    assert isinstance(batches, list)
    assert [batch[0, 0].item() for batch in batches] == [0.0, 1.0, 2.0]
    loader: Any = torch.utils.data.DataLoader([torch.zeros(2)] * 4, batch_size=2)  # type: ignore[arg-type]
    assert _case(batches=loader).training(CPU).batches is loader


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batches": itertools.repeat(0)}, "batches is a repeat that gives more than 1000"),
        ({"batches": iter(())}, "gave no batches"),
        ({"batches": 3}, "batches must be a list of them; it is a int"),
        ({"model": lambda batch: batch}, "model must be a torch module, .* it is a function"),
        ({"model": [None]}, "it holds NoneType"),
        ({"model": [nn.Linear(1, 1), nn.LazyBatchNorm1d(affine=False)]}, r"1.running_mean has no shape yet"),
        ({"model": nn.Sequential(nn.LazyLinear(2))}, r"0.weight has no shape yet; call its lazy module"),
    ],
)
def test_what_is_neither_gets_one_clear_message(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        _case(**given).training(CPU)


@pytest.mark.parametrize(
    ("place", "where", "matches"),
    [
        ("train.py:5", "train.py:5", True),
        ("train.py:5", "train.py:58", False),
        ("train.py", "train.py:58", True),
        ("2.py:58", "train12.py:58", False),
        ("n.py:58", "train.py:58", True),
    ],
)
def test_numbers_of_an_ignored_place_are_whole(place: str, where: str, matches: bool) -> None:
    entry = Ignored(rule="loss-scaled-twice", place=place, until=datetime.date(2999, 1, 1), reason="known")
    one = Diagnostic(rule="loss-scaled-twice", severity=Severity.ERROR, message="", remedy="", where=where)
    assert entry.matches(one, datetime.date(2026, 1, 1)) is matches


def _builds(*, model: Callable[[], nn.Module], noise: Callable[[], torch.Tensor]) -> Callable[..., Training]:
    def case(device: str, dtype: torch.dtype) -> Training:
        learner = model().to(device)
        optimizer = torch.optim.SGD(learner.parameters(), 0.1)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = learner(batch).float().square().mean()
            loss.backward()
            optimizer.step()

        return Training(model=learner, batches=[noise().to(device) for _ in range(3)], step=step)

    return case


ONCE = nn.Linear(4, 4)
OWN = torch.Generator().manual_seed(1)


@pytest.mark.parametrize(
    ("model", "noise", "differs"),
    [
        (lambda: nn.Linear(4, 4), lambda: torch.randn(8, 4), None),
        (lambda: nn.Linear(4, 4).half().float(), lambda: torch.full((8, 4), math.nan), None),
        (lambda: ONCE, lambda: torch.randn(8, 4), "weight"),
        (lambda: nn.Linear(4, 4), lambda: torch.randn(8, 4, generator=OWN), r"batches\[0\]"),
    ],
    ids=["anew", "not finite", "trained before", "other data"],
)
@pytest.mark.parametrize("backend", ["cpu-bfloat16", "emulated-cuda-bfloat16"])
def test_a_case_that_does_not_build_the_same_is_refused(
    model: Callable[[], nn.Module], noise: Callable[[], torch.Tensor], differs: str | None, backend: str
) -> None:
    case = AuditCase(id="mine", build=_builds(model=model, noise=noise))
    refused = pytest.raises(UsageError, match=rf"the case mine must build the same at each call, but {differs} is not")
    with refused if differs else nullcontext():
        audit(case, backends.backend(backend))


def test_what_a_run_starts_from_tells_order_and_leaves_out_what_has_no_values() -> None:
    model = nn.Linear(1, 1, bias=False)
    row = torch.arange(4.0)
    batches = [row, row.flip(0), row.to_sparse(), row.to(torch.complex64)]
    start = start_of(Training(model=model, batches=batches, step=print))
    assert list(start) == ["weight", "batches[0]", "batches[1]", "batches[3]"]
    assert start["batches[0]"] != start["batches[1]"]
    pairs = [start_of(Training(model=model, batches=[(first, row)], step=print)) for first in (row, row.flip(0))]
    assert pairs[0] != pairs[1]
    loader: Any = torch.utils.data.TensorDataset(row)
    assert list(start_of(Training(model=model, batches=loader, step=print))) == ["weight"]
