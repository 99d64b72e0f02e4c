"""What reaches an op at its own entry, below autocast, on any device.

A dispatch mode sees leaf ops only: it cannot tell whether `linear` itself was cast, or the `addmm` inside
it. This probe stands at the dispatch key between autocast and autograd (``Tracer``, which runs only where it
is included), for one
op at a time: it sees that op with its inputs as the autocast rule left them, composite or not, on real and
emulated devices, under autograd. See ``docs/decisions/0101-probe-at-the-entry-of-an-op.md``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from amp_checks.core import SuiteError
from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import dtype_name

_BELOW_AUTOCAST = "Tracer"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry into an op: the dtypes of its tensors in order, and its explicit ``dtype=`` where it takes
    one.
    """

    dtypes: tuple[str, ...]
    dtype_argument: str | None = None
    device: str = ""


class StoppedAtEntry(Exception):
    """The probe was asked to go no further: this machine has no kernel for the op."""


def overload(name: str) -> Any:
    """The ``OpOverload`` of ``softmax.int``.

    Raises:
        SuiteError: this torch has no such op.
    """
    base, _, suffix = name.partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), suffix or "default", None)
    if found is None:
        raise SuiteError(f"torch {torch.__version__} has no op aten::{name}; its row names one that does not exist")
    return found


@contextmanager
def entries(name: str, *, stop: bool = False) -> Iterator[list[Entry]]:
    """Every entry into the overload inside, outermost first.

    Args:
        name: the overload, ``softmax.int``.
        stop: raise `StoppedAtEntry` at the first one instead of running the op.
    """
    target = overload(name)
    names = private.argument_names(target)
    position = names.index("dtype") if "dtype" in names else None
    seen: list[Entry] = []

    def look(*args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype", args[position] if position is not None and position < len(args) else None)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        seen.append(
            Entry(
                dtypes=tuple(dtype_name(tensor.dtype) for tensor in tensors),
                dtype_argument=None if dtype is None else dtype_name(dtype),
                device=tensors[0].device.type if tensors else "",
            )
        )
        if stop:
            raise StoppedAtEntry(name)
        with private.excluding(_BELOW_AUTOCAST):
            return target(*args, **kwargs)

    with private.kernel(name, _BELOW_AUTOCAST, look), private.including(_BELOW_AUTOCAST):
        yield seen
