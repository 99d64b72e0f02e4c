"""DistributedDataParallel, its hooks and its neighbours under a gradient scaler."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch.utils.checkpoint import checkpoint

from amp_checks.core import Finding, Raised, attempt, bounded, first_line
from amp_checks.families.distributed import training, world
from amp_checks.families.distributed.rows import JOINED, SAME, DistributedRow, promise
from amp_checks.families.distributed.training import INF, SETTINGS, Plan
from amp_checks.torch_api.backend import Backend

NOTES = "torch notes: Automatic Mixed Precision examples, DistributedDataParallel"
HOOKS = "torch documentation: DDP Communication Hooks"


def against_oracle(case: DistributedRow, backend: Backend, plan: Plan, size: int = 2) -> Iterator[Finding]:
    """Every value of every rank is that of one process on the joined batch."""
    expected = training.joined(size, backend, plan).values
    seen = training.ranks(size, backend, plan)
    for rank, it in enumerate(seen):
        for name, value in it.values.items():
            if plan.exactly or name not in {"weights", "state"}:
                yield case.exact(f"rank {rank}: {name}", actual=value, expected=expected[name])
            else:
                yield close(f"rank {rank}: {name}", value, expected[name], backend, case.source)
    if not plan.exactly:
        yield from equal(case, seen)


def close(subject: str, actual: str, expected: str, backend: Backend, why: str) -> Finding:
    """Within `ROUNDINGS` eps of the low dtype, relative to the largest value of the tensor; NaN is not."""
    pairs = zip(ast.literal_eval(actual), ast.literal_eval(expected), strict=True)
    eps, ratio = torch.finfo(backend.low_dtype).eps, 0.0
    for one, other in pairs:
        reference = torch.tensor(other)
        difference = (torch.tensor(one) - reference).abs().max().item()
        ratio = max(ratio, difference / max(reference.abs().max().item(), 1e-30) / eps)
    return bounded(subject, ratio=ratio, threshold=training.ROUNDINGS, why=f"{why}; unit: eps of {backend.dtype}")


@promise("ddp", 1, 12, source=JOINED)
def check_ddp(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Three clean steps: scale, tracker, weights and momentum are those of one process."""
    yield from against_oracle(case, backend, Plan())


@promise("ddp-processes", 1, 2, source=SAME, full=True)
def check_ddp_processes(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Two processes with gloo, an inf on rank 1: what one process does on the joined batch."""
    plan = Plan(bad=(1, 1))
    expected = training.joined(2, backend, plan).values
    for rank, it in enumerate(world.processes(2, functools.partial(training.train, plan=plan), backend)):
        for name, value in it.values.items():
            yield case.exact(f"rank {rank}: {name}", actual=value, expected=expected[name])


@promise("ddp-inf-on", 2, source=NOTES, variants=("rank-0-step-0", "rank-1-step-0", "rank-1-step-1", "rank-0-step-2"))
def check_ddp_inf(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Infinite data on one rank at one step: all ranks skip that step, and no other."""
    _, rank, _, step = case.variant.split("-")
    yield from against_oracle(case, backend, Plan(bad=(int(rank), int(step))))


@promise("ddp-accumulation", 6, 7, source=NOTES, variants=("clean", "inf"))
def check_ddp_accumulation(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Two micro-batches a step, ``no_sync`` for the first: one unscaling, one update, one scale a step."""
    yield from against_oracle(
        case, backend, Plan(micro=2, bad=(1, 1) if case.variant == "inf" else None, exactly=False)
    )


@promise("ddp-clipped", 10, source=JOINED)
def check_ddp_clipped(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Unscale, then clip: the norm is that of the averaged gradient on every rank."""
    yield from against_oracle(case, backend, Plan(clip=1.0, exactly=False))


@promise("ddp-options", 9, 10, 11, source=JOINED, variants=("bucket-view", "unused", "static", "keep-gradients"))
def check_ddp_options(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Options of DDP change no value."""
    options: dict[str, Any] = {
        "bucket-view": {"gradient_as_bucket_view": True},
        "unused": {"find_unused_parameters": True},
        "static": {"static_graph": True},
        "keep-gradients": {},
    }[case.variant]
    plan = Plan(wrap=functools.partial(Ddp, **options), set_to_none=case.variant != "keep-gradients", bad=(0, 1))
    yield from against_oracle(case, backend, plan)


class Branch(nn.Module):
    """A model whose second layer one rank alone uses."""

    def __init__(self, inner: nn.Module, *, used: bool) -> None:
        super().__init__()
        self.inner, self.used = inner, used

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.inner, nn.Sequential)
        hidden: torch.Tensor = self.inner[0](data)
        return self.inner[1](hidden) if self.used else hidden


def _branch(rank: int, backend: Backend) -> training.End:
    def wrap(inner: nn.Module) -> Ddp:
        return Ddp(Branch(inner, used=rank == 1), find_unused_parameters=True)

    return training.train(rank, backend, Plan(wrap=wrap, bad=(1, 1)))


def equal(case: DistributedRow, seen: list[training.End]) -> Iterator[Finding]:
    """Every value of every rank is that of rank 0."""
    for rank, other in enumerate(seen[1:], start=1):
        for name, value in other.values.items():
            yield case.exact(f"rank {rank}: {name}", actual=value, expected=seen[0].values[name])


@promise("ddp-branch-of-one-rank", 9, source=SAME)
def check_ddp_branch(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """A layer that rank 1 alone uses, and an inf in it: the same scale and weights on both."""
    seen = world.threads(2, _branch, backend)
    yield case.exact("rank 0: skipped", actual=seen[0].skipped, expected="[False, True, False]")
    yield from equal(case, seen)


class Recomputed(nn.Module):
    """The model with its layers in checkpoints."""

    def __init__(self, inner: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.inner, nn.Sequential)
        data = data.requires_grad_()
        for layer in self.inner:
            data = checkpoint(layer, data, use_reentrant=self.reentrant)
        return data


@promise("ddp-checkpoint", 11, source=JOINED, variants=("reentrant", "not-reentrant"))
def check_ddp_checkpoint(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Layers recomputed in the backward pass, static graph: the gradients of no checkpoint."""

    def wrap(inner: nn.Module) -> Ddp:
        return Ddp(Recomputed(inner, reentrant=case.variant == "reentrant"), static_graph=True)

    yield from against_oracle(case, backend, Plan(wrap=wrap, bad=(0, 1)))


def _output_dtype(_: int, backend: Backend) -> str:
    wrapped = Ddp(training.model())
    with backend.region():
        return str(attempt("forward", wrapped, torch.ones(2, training.WIDTH)).dtype)


@promise("region-around-ddp", 12, source=NOTES)
def check_region_around_ddp(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """A region that is entered outside the wrapper applies inside its forward."""
    seen = world.threads(2, _output_dtype, backend)
    yield from case.each("output dtype", [*seen], f"torch.{backend.dtype}")


def _scales(rank: int, backend: Backend, *, share: bool) -> training.End:
    def made(backend: Backend) -> Any:
        scaler = backend.scaler(**{**SETTINGS, "init_scale": 8.0 if rank == 0 else 2.0})
        scaler.scale(torch.zeros(()))
        if share:
            box = [scaler.state_dict()]
            dist.broadcast_object_list(box, src=0)
            attempt("load_state_dict", scaler.load_state_dict, box[0])
        return scaler

    return training.train(rank, backend, Plan(scaler=made))


@promise("unequal-scales", 3, source=SAME)
def check_unequal_scales(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Scales 8 and 2 at the start, state of rank 0 sent to all: the training of scale 8 on both."""
    expected = training.joined(2, backend, Plan()).values
    for rank, seen in enumerate(world.threads(2, functools.partial(_scales, share=True), backend)):
        for name in ("scale", "tracker", "weights"):
            yield case.exact(f"rank {rank}: {name}", actual=seen.values[name], expected=expected[name])


def _uneven(rank: int, backend: Backend) -> tuple[float, int]:
    wrapped = Ddp(training.model())
    scaler, optimizer = backend.scaler(**SETTINGS), torch.optim.SGD(wrapped.parameters(), lr=0.0)
    with Join([wrapped]):
        for number in range(1 + rank):
            optimizer.zero_grad()
            training.backward(wrapped, training.batch(rank, number), scaler, backend)
            training.step(scaler, optimizer, list(wrapped.parameters()))
    state = scaler.state_dict()
    return state["scale"], state["_growth_tracker"]


@promise("join", 4, source=f"{SAME}; https://github.com/pytorch/pytorch/issues/90057")
def check_join(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Uneven inputs under Join, one batch and two, growth after two steps: the same scale on both."""
    (first, _), (second, _) = world.threads(2, _uneven, backend)
    yield case.exact("rank 0: scale", actual=first, expected=second)


def _outside(rank: int, backend: Backend, *, reduce: bool) -> float:
    """A parameter that DDP does not hold, with a gradient that is infinite on rank 0."""
    inner = training.model()
    expert = nn.Parameter(torch.ones(1))
    wrapped = Ddp(inner)
    scaler = backend.scaler(**SETTINGS)
    optimizer = torch.optim.SGD([*wrapped.parameters(), expert], lr=0.125)
    training.backward(wrapped, training.batch(rank, 0), scaler, backend)
    expert.grad = torch.full((1,), INF if rank == 0 else 8.0)
    if reduce:
        attempt("unscale_", scaler.unscale_, optimizer)
        dist.all_reduce(inf_of(scaler, optimizer), op=dist.ReduceOp.MAX)
    training.step(scaler, optimizer, [expert])
    return float(scaler.get_scale())


def inf_of(scaler: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """The flag that the scaler keeps for an optimizer after `unscale_`, itself, to be reduced."""
    (flag,) = scaler._found_inf_per_device(optimizer).values()  # noqa: SLF001 - the method that subclasses override
    assert isinstance(flag, torch.Tensor)
    return flag


@promise("parameter-outside-ddp", 8, source=SAME)
def check_outside(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """An inf in a parameter that one rank alone reduces nowhere: all ranks skip."""
    yield from case.each("scale", [*world.threads(2, functools.partial(_outside, reduce=False), backend)], 4.0)


@promise("parameter-outside-ddp-reduced", 8, source=SAME)
def check_outside_reduced(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """The same, found_inf reduced by MAX between `unscale_` and `step`: all ranks skip."""
    yield from case.each("scale", [*world.threads(2, functools.partial(_outside, reduce=True), backend)], 4.0)


def _local(rank: int, backend: Backend, *, synchronised: bool) -> float:
    wrapped = Ddp(training.model())
    scaler, optimizer = backend.scaler(**SETTINGS), torch.optim.SGD(wrapped.parameters(), lr=0.125)
    data = training.batch(rank, 0) * (INF if rank == 0 else 1.0)
    with wrapped.no_sync():
        training.backward(wrapped, data, scaler, backend)
    if synchronised:
        training.backward(wrapped, training.batch(rank, 1), scaler, backend)
    training.step(scaler, optimizer, list(wrapped.parameters()))
    return float(scaler.get_scale())


@promise("step-after-no-sync", 5, source=SAME)
def check_step_after_no_sync(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """An inf in a batch under ``no_sync``, then a batch that synchronises: all ranks skip."""
    yield from case.each("scale", [*world.threads(2, functools.partial(_local, synchronised=True), backend)], 4.0)


@promise("step-under-no-sync", 5, source=SAME)
def check_step_under_no_sync(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """The same without the second batch: the decision is on local gradients."""
    yield from case.each("scale", [*world.threads(2, functools.partial(_local, synchronised=False), backend)], 4.0)


def _hooked(rank: int, _: Backend, *, hook: Any, value: float, other: float | None = None) -> tuple[str, str]:
    wrapped = Ddp(nn.Linear(1, 1, bias=False))
    attempt("register_comm_hook", wrapped.register_comm_hook, None, hook)
    wrapped(torch.tensor([[value if rank == 0 or other is None else other]])).sum().backward()
    (parameter,) = wrapped.parameters()
    assert parameter.grad is not None
    return repr(parameter.grad.item()), str(parameter.grad.dtype)


@promise(
    "fp16-hook",
    13,
    14,
    15,
    source=f"{HOOKS}; float16: 65504 at most, spacing 2^-24 at 0",
    variants=("fits", "overflow", "underflow", "rounding", "wrapper-fits", "wrapper-overflow"),
)
def check_fp16_hook(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Gradients are cast to float16 and divided by the number of ranks in it, reduced, and given back in float32."""
    value, expected = {
        "fits": (3.0, 3.0),
        "overflow": (1e5, INF),
        "underflow": (2.0**-25, 0.0),
        "rounding": (1 + 2.0**-10 + 2.0**-12, 1 + 2.0**-10),
    }[case.variant.removeprefix("wrapper-")]
    wrapper = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    hook = wrapper if case.variant.startswith("wrapper") else default_hooks.fp16_compress_hook
    for rank, (seen, dtype) in enumerate(world.threads(2, functools.partial(_hooked, hook=hook, value=value), backend)):
        yield case.exact(f"rank {rank}: gradient", actual=seen, expected=repr(expected))
        yield case.exact(f"rank {rank}: dtype", actual=dtype, expected="torch.float32")


def _hooked_scaler(rank: int, backend: Backend) -> training.End:
    def wrap(inner: nn.Module) -> Ddp:
        wrapped = Ddp(inner)
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return wrapped

    def scaler(backend: Backend) -> Any:
        return backend.scaler(init_scale=2.0**16, growth_interval=100)

    return training.train(rank, backend, Plan(wrap=wrap, scaler=scaler, steps=4))


@promise("fp16-hook-scaled", 13, source=f"{HOOKS}; gradients of 1.5 and more at scale 2^16 are beyond float16")
def check_fp16_hook_scaled(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Gradients that the hook overflows at scale 65536 skip steps, on all ranks alike, until they fit."""
    seen = world.threads(2, _hooked_scaler, backend)
    yield from equal(case, seen)
    yield case.exact("rank 0: first step skipped", actual=seen[0].skipped.startswith("[True"), expected=True)
    yield case.exact("rank 0: last step taken", actual=seen[0].skipped.endswith("False]"), expected=True)


def _powered(rank: int, backend: Backend) -> training.End:
    def wrap(inner: nn.Module) -> Ddp:
        wrapped = Ddp(inner)
        state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2, min_compression_rate=1)
        wrapped.register_comm_hook(state, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook))
        return wrapped

    return training.train(rank, backend, Plan(wrap=wrap, steps=4))


@promise("powersgd-in-fp16", 15, source=HOOKS)
def check_powersgd(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """PowerSGD inside the float16 wrapper: finite, no step skipped, the same on all ranks."""
    seen = world.threads(2, _powered, backend)
    yield from equal(case, seen)
    yield case.exact("rank 0: skipped", actual=seen[0].skipped, expected=repr([False] * 4))
    yield case.exact("rank 0: finite", actual=not any(w in seen[0].weights for w in ("nan", "inf")), expected=True)


@promise("bf16-hook-refused", 16, source="DDP.register_comm_hook: the text of its errors", only="cpu")
def check_bf16_hook(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """bf16_compress_hook is refused by a torch that is built without NCCL, with the cause; others take it."""
    program = functools.partial(_hooked, hook=default_hooks.bf16_compress_hook, value=1.0)
    try:
        world.threads(2, program, backend)
        message = "no error"
    except Raised as raised:
        message = f"{type(raised.error).__name__}: {first_line(raised.error)}"
    refused = "TypeError" in message and "NCCL" in message
    yield case.exact("names NCCL", actual=refused, expected=not torch.distributed.is_nccl_available())


@promise("zero", 18, source=JOINED, variants=("clean", "inf"))
def check_zero(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Optimizer state in parts over ranks: the decision and the weights of one process."""

    def sharded(parameters: Any) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.125)

    def program(rank: int, backend: Backend) -> training.End:
        return training.train(rank, backend, Plan(optimizer=sharded, bad=bad))

    bad = (1, 1) if case.variant == "inf" else None
    plain = functools.partial(torch.optim.SGD, lr=0.125)
    expected = training.joined(2, backend, Plan(optimizer=plain, bad=bad)).values
    for rank, seen in enumerate(world.threads(2, program, backend)):
        for name in ("scale", "tracker", "weights", "skipped"):
            yield case.exact(f"rank {rank}: {name}", actual=seen.values[name], expected=expected[name])


def _own_check(rank: int, backend: Backend) -> bool:
    wrapped = Ddp(training.model())
    scaler, optimizer = backend.scaler(**SETTINGS), torch.optim.SGD(wrapped.parameters(), lr=0.125)
    training.backward(wrapped, training.batch(rank, 0) * (INF if rank else 1.0), scaler, backend)
    attempt("unscale_", scaler.unscale_, optimizer)
    norm = nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
    return math.isfinite(norm.item())


@promise("norm-before-a-skip", 51, source="https://github.com/pytorch/pytorch/issues/185915")
def check_norm_before_skip(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Before a step that will be skipped, the norm is not finite on any rank: a check of one's own must let it pass."""
    yield from case.each("norm is finite", [*world.threads(2, _own_check, backend)], False)
