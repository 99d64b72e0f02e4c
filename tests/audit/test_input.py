"""What a case and an ignore list may hold besides the plain: iterators, functions, numbers that begin alike."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity
from amp_checks.audit.diagnostics import Diagnostic
from amp_checks.audit.ignore import Ignored
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
    entry = Ignored(rule="scaled-twice", place=place, until=datetime.date(2999, 1, 1), reason="known")
    one = Diagnostic(rule="scaled-twice", severity=Severity.ERROR, message="", remedy="", where=where)
    assert entry.matches(one, datetime.date(2026, 1, 1)) is matches
