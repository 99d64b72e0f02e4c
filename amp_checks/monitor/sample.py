"""What a sampled iteration measures: sizes of activations and gradients by module, and of parameters by name.

Everything is computed on the device and read one iteration later, in one transfer: nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import numpy.typing
import torch
from torch import nn

from amp_checks.audit.places import Place, line
from amp_checks.monitor.float16 import LOST
from amp_checks.monitor.journal import Record
from amp_checks.torch_api.dtypes import LOW, dtype_name

_MOST = 1024
"""Elements of a tensor that shares and norms are taken of, evenly spread over it; the largest is that of all."""

Raw = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The smallest and the largest element, and some of the elements, float32: sums are taken later."""


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of up to so many elements of a detached tensor, float32."""
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.flatten()
    return flat[:: -(-flat.numel() // _MOST)].to(torch.float32, copy=True)


def measured(tensor: torch.Tensor) -> Raw:
    """What is kept of a tensor: NaN and infinity go through."""
    tensor = tensor.detach()
    return (*torch.aminmax(tensor), spread(tensor))


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
        self._gradients: list[tuple[str, str, torch.Tensor | None, Raw]] = []
        self._weights: list[torch.Tensor] = []
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
        """Gradients before a step; ``scale`` is what they were divided by since backward."""
        known = {row[0] for row in self._gradients}
        for name, parameter in named:
            gradient = parameter.grad
            if name in known or gradient is None or gradient.is_sparse or not gradient.numel():
                continue
            self._gradients.append((name, dtype_name(parameter.dtype), scale, measured(gradient)))

    def weights(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Parameters after a step: dtypes and norms, those of the elements that `spread` takes."""
        known = {name for name, _ in self._parameters}
        for name, one in named:
            if one.is_floating_point() and one.numel() and name not in known:
                self._parameters.append((name, dtype_name(one.dtype)))
                self._weights.append(spread(one.detach()))

    def read(self, path_of: Callable[[nn.Module], str]) -> tuple[Record, Record | None]:
        """The record of the sample, and that of the first value in it that is not finite."""
        raw = [entry.numbers for entry in self.entries] + [row[3] for row in self._gradients]
        largest_of = iter(_largest(raw))
        parts = iter(_together([one[2] for one in raw] + self._weights))
        modules: dict[str, Record] = {}
        first = None
        for entry in self.entries:
            largest, lost = next(largest_of), _share(next(parts), LOST)
            if first is None and not math.isfinite(largest):
                first = self._nonfinite(entry, path_of(entry.module), largest)
            if not entry.is_input:
                prefix = "gradient_" if entry.backward else ""
                row = modules.setdefault(path_of(entry.module), {})
                row[f"{prefix}dtype"] = dtype_name(entry.dtype)
                row[f"{prefix}max"] = _larger(row.get(f"{prefix}max", 0.0), _short(largest))
                row[f"{prefix}lost"] = _short(lost)
        gradients = {}
        for name, dtype, scale, _ in self._gradients:
            lost_below = LOST / (float(scale.item()) if scale is not None else 1.0)
            gradients[name] = {
                "dtype": dtype, "max": _short(next(largest_of)), "lost": _short(_share(next(parts), lost_below)),
            }  # fmt: skip
        weights = {
            name: {"dtype": dtype, "norm": _short(float(numpy.linalg.norm(next(parts))))}
            for name, dtype in self._parameters
        }
        total = sum(self._flops.values())
        census = {dtype_name(dtype): _short(flops / total) for dtype, flops in self._flops.items() if total}
        record = {
            "kind": "sample", "step": self.step, "regular": self.regular, "modules": modules, "gradients": gradients,
            "weights": weights, "flops": census, "casts": self._casts, "cast_bytes": self._cast_bytes,
        }  # fmt: skip
        return record, first

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


def _largest(raw: Sequence[Raw]) -> list[float]:
    """The largest magnitudes: one transfer for each dtype and device."""
    found = [0.0] * len(raw)
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number, (low, _, _) in enumerate(raw):
        groups.setdefault((low.dtype, low.device), []).append(number)
    for numbers in groups.values():
        both = torch.stack([end for number in numbers for end in raw[number][:2]]).abs().view(-1, 2).amax(1)
        for number, largest in zip(numbers, both.tolist(), strict=True):
            found[number] = largest
    return found


def _together(parts: Sequence[torch.Tensor]) -> list[numpy.typing.NDArray[numpy.float32]]:
    """The same numbers on the CPU: one transfer for each device."""
    found: dict[int, numpy.typing.NDArray[numpy.float32]] = {}
    for device in {part.device for part in parts}:
        numbers = [number for number, part in enumerate(parts) if part.device == device]
        whole, start = torch.cat([parts[number] for number in numbers]).cpu().numpy(), 0
        for number in numbers:
            end = start + len(parts[number])
            found[number], start = whole[start:end], end
    return [found[number] for number in range(len(parts))]


def _share(part: numpy.typing.NDArray[numpy.float32], below: float) -> float:
    """The share of elements whose magnitude is below that."""
    return float(numpy.count_nonzero(numpy.abs(part) < below)) / len(part)


def _larger(one: float, other: float) -> float:
    return other if math.isnan(other) or other > one else one


def _short(number: float) -> float:
    return float(f"{number:.4g}")
