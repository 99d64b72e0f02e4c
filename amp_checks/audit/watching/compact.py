"""Gradients of a run, kept in as few bytes as hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import torch
from torch import Tensor


class Gradients(MutableMapping[str, Tensor]):
    """Float64 tensors by the name of their parameter; those that float32 holds exactly are kept in it.

    An audit keeps the gradients of several runs, most of which computed in float32.
    """

    def __init__(self, gradients: Mapping[str, Tensor] | None = None) -> None:
        self._kept: dict[str, Tensor] = {}
        self.update(gradients or {})

    def __getitem__(self, name: str) -> Tensor:
        return self._kept[name].double()

    def __setitem__(self, name: str, value: Tensor) -> None:
        narrow = value.float()
        # NaN is equal to nothing: such a tensor stays as it is.
        self._kept[name] = narrow if torch.equal(narrow.double(), value) else value

    def __delitem__(self, name: str) -> None:
        del self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __or__(self, other: Mapping[str, Tensor]) -> Gradients:
        found = Gradients()
        found._kept = dict(self._kept)
        found.update(other)
        return found

    def put(self, name: str, value: Tensor, *, or_from: Gradients) -> None:
        """Set one; if ``or_from`` has the same under that name, its memory is used."""
        known = or_from.get(name)
        if known is not None and torch.equal(known, value):
            self._kept[name] = or_from._kept[name]
        else:
            self[name] = value
