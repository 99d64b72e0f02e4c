"""What a step after loading puts back."""

from __future__ import annotations

import pytest
import torch

from amp_checks.audit.runs import resume


@pytest.mark.parametrize(
    ("after", "back"),
    [
        ((0.4, 0.0), True),
        ((0.3, 0.6), True),
        ((0.6, 0.0), False),
        ((0.3, 0.8), False),
        ((-0.9, 0.0), False),
        ((1.3, 0.2), False),
    ],
    ids=["most of the way", "and across", "less than half", "far across", "as far beyond", "on"],
)
def test_what_a_step_puts_back(after: tuple[float, float], back: bool) -> None:
    first, loaded = torch.zeros(2), torch.tensor([1.0, 0.0])
    assert resume._went_back(first, loaded, torch.tensor(after)) is back
    assert not resume._went_back(first, first, first)
