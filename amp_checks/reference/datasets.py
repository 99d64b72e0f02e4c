"""The data that the tasks learn from: small, real, and shipped (see ``fixtures/reference/SOURCES.md``)."""

from __future__ import annotations

import functools
import gzip

import numpy as np
import torch

from amp_checks.records import fixtures

DIGITS_HELD_OUT = 360
TEXT_HELD_OUT = 800


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Handwritten digits: images, float32 of shape (1797, 64) between 0 and 1, and labels, int64 of shape (1797,).

    The last `DIGITS_HELD_OUT` are for validation.
    """
    with gzip.open(fixtures.fixture("reference/digits.csv.gz"), "rt") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    return table[:, :-1] / 16.0, table[:, -1].to(torch.int64)


@functools.cache
def characters() -> tuple[torch.Tensor, int]:
    """Lines of Coriolanus as numbers of characters, int64 of shape (length,), and how many characters there are.

    The last `TEXT_HELD_OUT` are for validation.
    """
    text = fixtures.fixture("reference/coriolanus.txt").read_text(encoding="utf-8")
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


class Batches:
    """Batches of rows in a random order that is drawn once, from the global random state.

    Args:
        rows: how many rows there are.
        size: of a batch. The order starts again when fewer are left.
    """

    def __init__(self, rows: int, size: int) -> None:
        self.order = torch.randperm(rows)
        self.size = size

    def __call__(self, number: int) -> torch.Tensor:
        """Indices of batch ``number``, int64 of shape (size,)."""
        start = number % (len(self.order) // self.size) * self.size
        return self.order[start : start + self.size]
