"""What is known of an op by its name and schema."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from amp_checks.audit.watching import constants
from amp_checks.torch_api import private

MOVES = frozenset(
    f"aten::{name}"
    for name in (
        "cat", "stack", "clone", "copy_", "index", "index_select", "embedding", "gather", "repeat", "flip", "view",
        "_unsafe_view", "reshape", "_foreach_copy_",
    )
)  # fmt: skip
"""Ops that change no value: they hand on what another op made."""

_ALLOCATING = {
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
}
_ZEROING = {"aten::zero_", "aten::_foreach_zero_", "aten::fill_.Scalar"}
_ACCUMULATING = {"aten::add", "aten::add_", "aten::sub_", "aten::lerp_", "aten::index_add_", "aten::scatter_add_"}
PRODUCTS = {
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul", "einsum", "addmv", "mv", "dot")
}
_OF_ANGLES = {f"aten::{name}" for name in ("sin", "cos", "tan", "polar", "sin_", "cos_")}


class OpFacts:
    """An op; ``base`` is its name without overload."""

    def __init__(self, func: Any) -> None:
        self.name: str = func.name()
        self.base = self.name.partition(".")[0]
        self.view = private.is_aliasing(func)
        self.changes = private.is_mutating(func)
        self.cast = self.name == "aten::_to_copy"
        self.checks_constants = self.base in constants.CHECKED
        self.accumulates = self.base in _ACCUMULATING
        self.product = self.base in PRODUCTS
        self.zeroes = self.name in _ZEROING
        self.allocates = self.base in _ALLOCATING


def is_of_angle(base: str, out: Any) -> bool:
    """Whether an op takes angles: what it makes forgets their size, and that their rounding error is one of turns."""
    return base in _OF_ANGLES or (base == "aten::exp" and isinstance(out, Tensor) and out.is_complex())


def tensors_of(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among an op's arguments, then those in lists of them."""
    found = [value for value in args if isinstance(value, Tensor)]
    for value in args:
        if type(value) is list or type(value) is tuple:
            found += [item for item in value if isinstance(item, Tensor)]
    return found
