"""Values that rounding to 16 bits loses without an infinity: integers on their way, sums that stand still."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from amp_checks.audit.places import Place, user_frame
from amp_checks.audit.watching.events import IntegersRounded, SumStagnates
from amp_checks.audit.watching.op_facts import OpFacts
from amp_checks.audit.watching.state import RunState
from amp_checks.torch_api.dtypes import LOW

_INTEGERS = (torch.int16, torch.int32, torch.int64)
_LARGEST = {torch.float16: 2048, torch.bfloat16: 256}
"""Up to where each 16-bit dtype holds all integers."""
_SUMS = {"aten::add", "aten::add_"}
_MANY = 32
"""Additions to one carried sum in one iteration, from which it is a long one: residual streams have 24 to 200, each
large."""


@dataclasses.dataclass(slots=True)
class _Sum:
    """A sum that one line carries on: its last value, how many additions, and how many of the last stood still."""

    value: Tensor
    op: str
    count: int = 0
    still: int = 0


class RoundingWatch:
    """Looks at casts and additions of the first iteration."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._rounded: tuple[Place | None, torch.dtype, float] | None = None
        self._sums: dict[Place | None, _Sum] = {}

    def look(self, facts: OpFacts, tensors: list[Tensor], out: Any) -> None:
        """One op of forward ran."""
        if self._state.step or not isinstance(out, Tensor) or not tensors:
            return
        if facts.cast:
            self._cast(tensors[0], out)
        elif facts.base in _SUMS and out.dtype in LOW and out.dim():
            self._add(facts, tensors, out)

    def _cast(self, given: Tensor, out: Tensor) -> None:
        if out.dtype in LOW and given.dtype in _INTEGERS and given.numel():
            share = (out.to(given.dtype) != given).double().mean().item()
            if share:
                self._rounded = user_frame(), out.dtype, share
        elif self._rounded is not None and out.dtype in _INTEGERS and given.dtype in LOW and given.numel():
            place, dtype, share = self._rounded
            if given.abs().max().item() > _LARGEST[dtype]:
                self._state.emit_once(IntegersRounded, dtype, share, place=place)

    def _add(self, facts: OpFacts, tensors: list[Tensor], out: Tensor) -> None:
        place = user_frame()
        carried = self._sums.get(place)
        last = carried.value.data_ptr() if carried is not None else None
        terms = [one for one in tensors if one.data_ptr() != last]
        if carried is None or len(terms) == len(tensors) or len(terms) != 1:
            carried = self._sums[place] = _Sum(out, facts.name)
        else:
            term, carried.value = terms[0], out
            moves = ((out + term) != out) | (term == 0)
            carried.count += 1
            carried.still = 0 if bool(moves.double().mean() > 0.5) else carried.still + 1
            if carried.still == _MANY:
                self._state.emit_once(SumStagnates, facts.name, out.dtype, carried.count, place=place)
