"""What a sampled iteration measures: sizes of activations and gradients by module, and of parameters by name.

Everything is computed on the device and read one iteration later, in one transfer: nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from amp_checks.audit.places import Place, line
from amp_checks.monitor.journal import Record
from amp_checks.torch_api.dtypes import LOW, dtype_name

LOST = 6e-8
"""float16's smallest number is 2**-24, 5.96e-8: what is smaller is lost (IEEE 754 binary16)."""
LARGEST = 65504.0
"""float16's largest number (IEEE 754 binary16)."""
_MOST = 4096
"""Elements of a tensor that shares are counted of, evenly spread over it; the largest is that of all."""


def measured(tensor: torch.Tensor, lost_below: float | torch.Tensor = LOST) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest magnitude (NaN and infinity go through), and the share of elements smaller than ``lost_below``, zeros too."""
    tensor = tensor.detach()
    low, high = torch.aminmax(tensor)
    largest = torch.maximum(low.neg(), high)
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.flatten()[:_MOST]
    part = flat[:: max(1, flat.numel() // _MOST)]
    return largest.float(), (part.abs() < lost_below).float().mean()


class Entry:
    """A value that was measured: where, and what it was."""

    __slots__ = ("backward", "dtype", "is_input", "module", "numbers", "op", "place")

    def __init__(
        self,
        module: nn.Module,
        tensor: torch.Tensor,
        op: str | None,
        place: Place | None,
        *,
        backward: bool,
        is_input: bool,
    ) -> None:
        self.module = module
        self.dtype = tensor.dtype
        self.op = op
        self.place = place
        self.backward = backward
        self.is_input = is_input
        self.numbers = measured(tensor)


class Sample:
    """One sampled iteration, as it runs.

    Attributes:
        step: which.
        regular: whether its turn had come; one that is not is sampled because of the iterations before it.
        deep: whether inputs of modules are measured too: then a value that no module made is placed as well.
    """

    def __init__(self, step: int, *, regular: bool, deep: bool) -> None:
        self.step = step
        self.regular = regular
        self.deep = deep
        self.entries: list[Entry] = []
        self._parameters: list[tuple[str, str]] = []
        self._gradients: list[tuple[str, str, tuple[torch.Tensor, torch.Tensor]]] = []
        self._norms: list[torch.Tensor] = []
        self._flops: dict[torch.dtype, float] = {}
        self._casts = 0
        self._cast_bytes = 0

    def ran(self, module: nn.Module, inputs: Any, output: Any, place: Place | None) -> None:
        """A module without submodules that ran has run."""
        result, given = first_float(output), first_float(inputs)
        if result is None:
            return
        if self.deep and given is not None:
            self.entries.append(Entry(module, given, _op(given), place, backward=False, is_input=True))
        self.entries.append(Entry(module, result, _op(result), place, backward=False, is_input=False))
        self._count(module, given, result)
        if result.requires_grad:
            result.register_hook(lambda gradient: self._backward(module, gradient, place))

    def _backward(self, module: nn.Module, gradient: torch.Tensor, place: Place | None) -> None:
        with torch.no_grad():
            if not gradient.is_sparse:
                self.entries.append(Entry(module, gradient, None, place, backward=True, is_input=False))

    def _count(self, module: nn.Module, given: torch.Tensor | None, result: torch.Tensor) -> None:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() < 2 or given is None:
            return
        per_output = weight.numel() / weight.shape[0]
        self._flops[result.dtype] = self._flops.get(result.dtype, 0.0) + 2.0 * result.numel() * per_output
        for tensor in (given, weight):
            if tensor.dtype is torch.float32 and result.dtype in LOW:
                self._casts += 1
                self._cast_bytes += tensor.numel() * (tensor.element_size() + result.element_size())

    def gradients(self, named: Sequence[tuple[str, torch.Tensor]], scale: torch.Tensor | None) -> None:
        """Gradients before a step; ``scale`` is what they would have to be multiplied by to be as backward made them."""
        known = {name for name, _, _ in self._gradients}
        for name, parameter in named:
            gradient = parameter.grad
            if name in known or gradient is None or gradient.is_sparse or not gradient.numel():
                continue
            lost_below = LOST if scale is None else (LOST / scale).to(gradient.device)
            self._gradients.append((name, dtype_name(parameter.dtype), measured(gradient, lost_below)))

    def weights(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Parameters after a step: dtypes and norms."""
        dense = [(name, one.detach()) for name, one in named if one.is_floating_point() and one.numel()]
        self._parameters += [(name, dtype_name(one.dtype)) for name, one in dense]
        self._norms += [norm.float() for norm in torch._foreach_norm([one for _, one in dense])] if dense else []  # noqa: SLF001 - as torch.nn.utils uses it

    def read(self, path_of: Callable[[nn.Module], str]) -> tuple[Record, Record | None]:
        """The record of the sample, and that of the first value in it that is not finite."""
        numbers = iter(_read(self._tensors()))
        modules: dict[str, Record] = {}
        first = None
        for entry in self.entries:
            largest, lost = next(numbers), next(numbers)
            if first is None and not math.isfinite(largest):
                first = self._nonfinite(entry, path_of(entry.module), largest)
            if not entry.is_input:
                prefix = "gradient_" if entry.backward else ""
                row = modules.setdefault(path_of(entry.module), {})
                row[f"{prefix}dtype"] = dtype_name(entry.dtype)
                row[f"{prefix}max"] = _larger(row.get(f"{prefix}max", 0.0), _short(largest))
                row[f"{prefix}lost"] = _short(lost)
        gradients = {
            name: {"dtype": dtype, "max": _short(next(numbers)), "lost": _short(next(numbers))}
            for name, dtype, _ in self._gradients
        }
        weights = {name: {"dtype": dtype, "norm": _short(next(numbers))} for name, dtype in self._parameters}
        total = sum(self._flops.values())
        census = {dtype_name(dtype): _short(flops / total) for dtype, flops in self._flops.items() if total}
        record = {
            "kind": "sample", "step": self.step, "regular": self.regular, "modules": modules, "gradients": gradients,
            "weights": weights, "flops": census, "casts": self._casts, "cast_bytes": self._cast_bytes,
        }  # fmt: skip
        return record, first

    def _tensors(self) -> list[torch.Tensor]:
        found = [number for entry in self.entries for number in entry.numbers]
        found += [number for _, _, numbers in self._gradients for number in numbers]
        return found + self._norms

    def _nonfinite(self, entry: Entry, module: str, largest: float) -> Record:
        what = "gradient" if entry.backward else "input" if entry.is_input else "activation"
        return {
            "kind": "nonfinite", "step": self.step, "what": what, "module": module, "op": entry.op,
            "where": line(entry.place), "dtype": dtype_name(entry.dtype), "value": largest,
        }  # fmt: skip


def first_float(value: Any) -> torch.Tensor | None:
    """The first dense floating tensor with elements in what a module took or gave."""
    if isinstance(value, torch.Tensor):
        dense = value.is_floating_point() and value.layout is torch.strided and value.numel()
        return value if dense else None
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for part in parts if (found := first_float(part)) is not None), None)


def _op(tensor: torch.Tensor) -> str | None:
    """The op that made a tensor, as autograd names it."""
    node = tensor.grad_fn
    return node.name().partition("Backward")[0].lower() if node is not None else None


def _read(tensors: list[torch.Tensor]) -> list[float]:
    """Numbers of one device in one transfer, of several in as many."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) == 1:
        return [float(number) for number in torch.stack(tensors).tolist()]
    return [float(tensor.item()) for tensor in tensors]


def _larger(one: float, other: float) -> float:
    return other if math.isnan(other) or other > one else one


def _short(number: float) -> float:
    return float(f"{number:.4g}")
