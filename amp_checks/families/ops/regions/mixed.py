"""Low results that meet tensors of other dtypes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from amp_checks.families.ops.regions.program import Seen, Topic, named, outcome, program, tensor
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import seeded


def _dtype_of(backend: Backend, function: Callable[[], torch.Tensor]) -> str:
    found: list[str] = []
    raised = outcome(lambda: found.append(named(backend, function().dtype)))
    return found[0] if found else raised.partition(":")[0]


@program(
    Topic.MIXED,
    {"scatter_add": "float32", "index_add": "float32", "index_put": "float32", "assignment to an index": "float32"},
    source="a low result goes into a float32 tensor: pytorch issues 37735 and 51730",
)
def low_into_float32(backend: Backend) -> Seen:
    base, square = tensor(backend, 4, 4), tensor(backend, 4, 4, seed="square")
    rows = torch.tensor([0, 1, 2, 3], device=backend.device_type)
    index = torch.zeros(4, 4, dtype=torch.int64, device=backend.device_type)

    def assigned() -> torch.Tensor:
        kept = base.clone()
        kept[rows] = torch.mm(square, square)
        return kept

    with backend.region():
        return {
            "scatter_add": _dtype_of(backend, lambda: base.scatter_add(0, index, torch.mm(square, square))),
            "index_add": _dtype_of(backend, lambda: base.index_add(0, rows, torch.mm(square, square))),
            "index_put": _dtype_of(backend, lambda: base.index_put((rows,), torch.mm(square, square))),
            "assignment to an index": _dtype_of(backend, assigned),
        }


@program(Topic.MIXED, {"a layer with spectral norm": "low"}, source="pytorch issue 125544")
def spectral_norm(backend: Backend) -> Seen:
    with seeded("spectral norm"):
        layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 6)).to(backend.device_type)
    with backend.region():
        return {"a layer with spectral norm": _dtype_of(backend, lambda: layer(tensor(backend, 2, 6)))}


@program(
    Topic.MIXED,
    {
        "mm of float64": "float64",
        "linear of float64 and float32": "RuntimeError",
        "mse_loss of low and float64": "float64",
    },
    source="autocast leaves float64 alone, torch.amp documentation",
)
def float64_meets(backend: Backend) -> Seen:
    double, single = tensor(backend, 4, 4).double(), tensor(backend, 4, 4)
    with backend.region():
        return {
            "mm of float64": _dtype_of(backend, lambda: torch.mm(double, double)),
            "linear of float64 and float32": _dtype_of(backend, lambda: functional.linear(double, single)),
            "mse_loss of low and float64": _dtype_of(
                backend, lambda: functional.mse_loss(torch.mm(single, single), double)
            ),
        }


@program(
    Topic.MIXED,
    {"with logits, loss of logit 12": 12.0, "of a probability": "RuntimeError"},
    source="binary_cross_entropy is unsafe after a 16-bit sigmoid: pytorch issue 61098",
)
def saturated_cross_entropy(backend: Backend) -> Seen:
    logit, target = tensor(backend, 1).zero_() + 12.0, tensor(backend, 1).zero_()
    with backend.region():
        good = functional.binary_cross_entropy_with_logits(logit.to(backend.low_dtype), target)
        probability = torch.sigmoid(logit.to(backend.low_dtype))
        loss: list[float] = []
    with backend.region():
        raised = outcome(lambda: loss.append(functional.binary_cross_entropy(probability, target).item()))
    return {
        "with logits, loss of logit 12": round(good.item(), 3),
        "of a probability": f"a loss of {loss[0]:.0f}" if loss else raised.partition(":")[0],
    }
