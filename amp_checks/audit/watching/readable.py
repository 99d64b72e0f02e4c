"""Values of whatever a program holds: sparse, complex, nested, quantised, of 8 bits, of a subclass, without data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def values(tensor: Tensor) -> Tensor | None:
    """What it holds, plain: of a sparse one the stored elements, of a complex one both parts, of 8 bits in float32.

    None where it holds nothing that can be read: on ``meta``, in a subclass that sees ops itself, nested, quantised.
    """
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None
    if tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return None
    found = tensor.detach()
    if found.layout is torch.sparse_coo:
        found = found.coalesce().values()
    elif found.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        found = found.values()
    elif found.layout is not torch.strided:
        found = found.to_dense()
    if found.is_complex():
        found = torch.view_as_real(found.resolve_conj().resolve_neg())
    return found.float() if found.is_floating_point() and found.dtype.itemsize == 1 else found


def is_finite(tensor: Tensor) -> bool:
    """Whether all its values are; what cannot be read is."""
    found = values(tensor)
    return found is None or not found.is_floating_point() or bool(found.isfinite().all())


def is_zero(tensor: Tensor) -> bool:
    """Whether all its values are; what cannot be read is not."""
    found = values(tensor)
    return found is not None and not bool(found.any())


def exact(tensor: Tensor) -> Tensor | None:
    """A dense copy on the CPU, in float64; of a complex one both parts; None where it cannot be read."""
    if values(tensor) is None:
        return None
    found = tensor.detach()
    found = found if found.layout is torch.strided else found.to_dense()
    found = torch.view_as_real(found.resolve_conj()) if found.is_complex() else found
    return found.to(device="cpu", dtype=torch.float64, copy=True)


def parameters_of(optimizer: Any) -> Iterator[Tensor]:
    """The parameters of an optimizer; of what has no ``param_groups``, none."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]
