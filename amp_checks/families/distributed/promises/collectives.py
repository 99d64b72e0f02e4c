"""What ranks send: the dtype and size of each collective, observed where it enters the process group."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from packaging.version import Version
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from amp_checks.core import Finding, attempt
from amp_checks.families.distributed import training, world
from amp_checks.families.distributed.promises import sharded
from amp_checks.families.distributed.promises.fsdp1 import POLICIES
from amp_checks.families.distributed.rows import DistributedRow, promise
from amp_checks.torch_api import private_ranks
from amp_checks.torch_api.backend import Backend


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    """Collectives of one kind and dtype on one rank: how many, and their bytes together."""

    collective: str
    dtype: str
    count: int
    bytes: int


def _ddp_fp16(inner: nn.Module) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(inner)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return wrapped


def _fsdp2(text: str) -> Callable[[nn.Module], nn.Module]:
    return lambda inner: sharded.fsdp2(inner, policy=sharded._policy(text))  # noqa: SLF001 - one family


def _fsdp1(name: str) -> Callable[[nn.Module], nn.Module]:
    return lambda inner: sharded.fsdp1(inner, policy=POLICIES[name])


# Of 2.15 the documentation says that gradients follow grad_dtype, else the original dtype.
_NONE = "float32" if Version(torch.__version__).release >= (2, 15) else "bfloat16"

WRAPPERS: dict[str, tuple[Callable[[nn.Module], nn.Module], tuple[tuple[str, str], ...]]] = {
    "ddp": (DistributedDataParallel, (("all_reduce", "float32"),)),
    "ddp-fp16-hook": (_ddp_fp16, (("all_reduce", "float16"),)),
    "fsdp1-none": (_fsdp1("none"), (("all_gather", "float32"), ("reduce_scatter", "float32"))),
    "fsdp1-fp16": (_fsdp1("fp16"), (("all_gather", "float16"), ("reduce_scatter", "float16"))),
    "fsdp1-fp16-fp32": (_fsdp1("fp16-fp32"), (("all_gather", "float16"), ("reduce_scatter", "float32"))),
    "fsdp2-none-none": (_fsdp2("none-none"), (("all_gather", "float32"), ("reduce_scatter", "float32"))),
    "fsdp2-float16-float32": (_fsdp2("float16-float32"), (("all_gather", "float16"), ("reduce_scatter", "float32"))),
    "fsdp2-bfloat16-bfloat16": (
        _fsdp2("bfloat16-bfloat16"),
        (("all_gather", "bfloat16"), ("reduce_scatter", "bfloat16")),
    ),
    "fsdp2-none-bfloat16": (_fsdp2("none-bfloat16"), (("all_gather", "float32"), ("reduce_scatter", "bfloat16"))),
    "fsdp2-bfloat16-none": (_fsdp2("bfloat16-none"), (("all_gather", "bfloat16"), ("reduce_scatter", _NONE))),
}
"""Wrapper -> how it is made, and in which dtypes it should send."""


def _step(rank: int, _: Backend, *, wrap: Callable[[nn.Module], Any], began: list[bool]) -> None:
    wrapped = attempt("wrapping", wrap, training.model())
    torch.distributed.barrier()
    began[rank] = True
    attempt("backward", attempt("forward", wrapped, torch.ones(2, training.WIDTH)).float().sum().backward)
    torch.distributed.barrier()
    began[rank] = False


def sent(wrapper: str, backend: Backend) -> list[list[Sent]]:
    """What each of two ranks sends in one forward and backward pass; what wrapping sends does not count."""
    began = [False, False]
    seen: list[dict[tuple[str, str], list[int]]] = [{}, {}]

    def record(rank: int, collective: str, tensor: torch.Tensor) -> None:
        if began[rank]:
            name = str(tensor.dtype).removeprefix("torch.")
            seen[rank].setdefault((collective, name), []).append(tensor.numel() * tensor.element_size())

    with private_ranks.watched_collectives(record):
        world.threads(2, functools.partial(_step, wrap=WRAPPERS[wrapper][0], began=began), backend)
    return [
        [
            Sent(collective=one, dtype=two, count=len(sizes), bytes=sum(sizes))
            for (one, two), sizes in sorted(it.items())
        ]
        for it in seen
    ]


def floats(sent: list[Sent]) -> list[Sent]:
    """Without integers, by which ranks agree on buckets before the first reduction."""
    return [one for one in sent if not one.dtype.startswith(("int", "uint"))]


@promise("collectives", 32, 33, source="documentation of the wrapper and its policy", variants=tuple(WRAPPERS))
def check_collectives(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Parameters are gathered and gradients reduced in the dtypes of the policy."""
    expected = repr(list(WRAPPERS[case.variant][1]))
    for rank, it in enumerate(sent(case.variant, backend)):
        seen = [(one.collective, one.dtype) for one in floats(it)]
        yield case.exact(f"rank {rank}: collectives and dtypes", actual=repr(seen), expected=expected)
