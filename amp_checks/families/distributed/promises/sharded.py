"""Sharded parameters under a gradient scaler: FSDP1, FSDP2, HSDP, tensor parallel, and several meshes at once."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel as Fsdp1,
)
from torch.distributed.fsdp import (
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from amp_checks.core import Finding, Raised, attempt
from amp_checks.families.distributed import training, world
from amp_checks.families.distributed.promises.ddp import against_oracle, equal
from amp_checks.families.distributed.rows import JOINED, SAME, DistributedRow, promise
from amp_checks.families.distributed.training import SETTINGS, WIDTH, Plan
from amp_checks.torch_api.backend import Backend

POLICY = "torch.distributed.fsdp.MixedPrecisionPolicy"
SHARDED = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
ADAM = functools.partial(torch.optim.Adam, lr=0.125)


def device() -> torch.device:
    """Where this rank's tensors say they are: under emulation, the emulated device."""
    return nn.Parameter(torch.empty(0)).device


def mesh(*shape: int) -> DeviceMesh:
    """A mesh of ranks whose dimensions are named a, b, ..."""
    return init_device_mesh(device().type, shape, mesh_dim_names=tuple("abc"[: len(shape)]))


def sharded_scaler(backend: Backend) -> Any:
    return ShardedGradScaler(backend.device_type, **SETTINGS)


# --- FSDP2 ----------------------------------------------------------------------------------------------------------


def fsdp2(inner: nn.Module, *shape: int, policy: MixedPrecisionPolicy | None = None) -> Any:
    """The model, its layers and itself sharded over a mesh of that shape; 2 ranks where none is given."""
    over, chosen = mesh(*(shape or (2,))), policy or MixedPrecisionPolicy()
    for layer in inner.children():
        fully_shard(layer, mesh=over, mp_policy=chosen)
    return fully_shard(inner, mesh=over, mp_policy=chosen)


@promise("fsdp2", 28, 41, source=JOINED, variants=("clean", "inf", "adam", "adam-inf"))
def check_fsdp2(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """GradScaler on DTensor gradients: scale, tracker, weights and state are those of one process."""
    bad = (1, 1) if "inf" in case.variant else None
    plan = Plan(wrap=fsdp2, bad=bad)
    if "adam" in case.variant:
        plan = Plan(wrap=fsdp2, bad=bad, optimizer=ADAM, exactly=False)
    yield from against_oracle(case, backend, plan)


def _fused(rank: int, backend: Backend) -> training.End:
    adam = functools.partial(torch.optim.Adam, lr=0.125, fused=True)
    return training.train(rank, backend, Plan(wrap=fsdp2, bad=(1, 1), optimizer=adam))


@promise("fsdp2-fused-adam", 28, source=SAME)
def check_fsdp2_fused(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Fused Adam, an inf on rank 1 at the second step: that step is skipped on both."""
    seen = world.threads(2, _fused, backend)
    yield case.exact("rank 0: skipped", actual=seen[0].skipped, expected="[False, True, False]")
    yield case.exact("rank 0: scale", actual=seen[0].scale, expected=4.0)
    yield from equal(case, seen)


@promise("fsdp2-two-scalers", 28, source=JOINED)
def check_fsdp2_sharded_scaler(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """ShardedGradScaler on FSDP2 does what GradScaler does."""
    yield from against_oracle(case, backend, Plan(wrap=fsdp2, bad=(0, 1), scaler=sharded_scaler))


@promise("hsdp", 31, source=JOINED)
def check_hsdp(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Two replicas of two shards, infinite data on one rank: all four ranks take the steps of one process."""
    yield from against_oracle(case, backend, Plan(wrap=_hsdp, bad=(3, 1)), size=4)


def _hsdp(inner: nn.Module) -> Any:
    return fsdp2(inner, 2, 2)


def _few(rank: int, backend: Backend) -> training.End:
    def wrap(_: nn.Module) -> Any:
        layer = nn.Linear(WIDTH, 1, bias=False)
        nn.init.constant_(layer.weight, 0.5)
        return fully_shard(nn.Sequential(layer), mesh=mesh(2))

    return training.train(rank, backend, Plan(wrap=wrap, bad=(1, 1)))


@promise("fsdp2-empty-shard", 23, source=SAME)
def check_empty_shard(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """A parameter of one row over two ranks: the rank whose shard is empty has the same scale."""
    seen = world.threads(2, _few, backend)
    yield from case.each("skipped", [it.skipped for it in seen], "[False, True, False]")
    yield from case.each("scale", [it.scale for it in seen], 4.0)


def _dtypes(_: int, backend: Backend, *, policy: MixedPrecisionPolicy) -> tuple[str, str, str]:
    wrapped = fsdp2(training.model(), policy=policy)
    del backend
    output = attempt("forward", wrapped, torch.ones(2, WIDTH))
    attempt("backward", output.float().sum().backward)
    parameter = next(wrapped.parameters())
    assert parameter.grad is not None
    return str(output.dtype), str(parameter.grad.dtype), str(parameter.dtype)


PAIRS = ("none-none", "float16-float32", "bfloat16-float32", "float16-float16", "bfloat16-bfloat16", "none-bfloat16")


def _policy(text: str) -> MixedPrecisionPolicy:
    first, second = (None if name == "none" else getattr(torch, name) for name in text.split("-"))
    return MixedPrecisionPolicy(param_dtype=first, reduce_dtype=second)


@promise("fsdp2-policy", 32, source=POLICY, variants=PAIRS)
def check_policy(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Output in param_dtype; sharded parameter and gradient in the parameter's own dtype."""
    name = case.variant.split("-")[0]
    output = "torch.float32" if name == "none" else f"torch.{name}"
    program = functools.partial(_dtypes, policy=_policy(case.variant))
    for rank, (out, gradient, parameter) in enumerate(world.threads(2, program, backend)):
        yield case.exact(f"rank {rank}: output dtype", actual=out, expected=output)
        yield case.exact(f"rank {rank}: gradient dtype", actual=gradient, expected="torch.float32")
        yield case.exact(f"rank {rank}: parameter dtype", actual=parameter, expected="torch.float32")


def _reduced(rank: int, _: Backend, *, policy: MixedPrecisionPolicy, value: float) -> str:
    layer = nn.Linear(1, 2, bias=False)
    fully_shard(layer, mesh=mesh(4), mp_policy=policy)
    attempt("backward", layer(torch.tensor([[value]])).sum().backward)
    assert isinstance(layer.weight.grad, DTensor)
    del rank
    return repr(layer.weight.grad.full_tensor().flatten().tolist())


@promise(
    "fsdp2-reduction",
    34,
    source=f"{POLICY}; four gradients of 40000: their mean fits float16",
    variants=("bfloat16-float32", "float16-float32", "float16-float16"),
)
def check_reduction(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """The mean over four ranks of equal gradients is that gradient."""
    # 40000 is no value of bfloat16: 39936 is the nearest.
    expected = 39936.0 if "bfloat16" in case.variant else 40000.0
    program = functools.partial(_reduced, policy=_policy(case.variant), value=40000.0)
    yield from case.each("gradient", [*world.threads(4, program, backend)], repr([expected] * 2))


def _accumulated(rank: int, backend: Backend) -> str:
    wrapped = fsdp2(
        training.model(), policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
    del backend
    # 256 + 1 needs nine bits: bfloat16 would drop the one.
    for value, last in ((256.0, False), (1.0, True)):
        wrapped.set_requires_gradient_sync(last)
        attempt("backward", wrapped[0](torch.full((1, WIDTH), value)).sum().backward)
    del rank
    return training.text([next(wrapped.parameters()).grad])


@promise("fsdp2-accumulation", 35, source=f"{POLICY}: gradients without sync are held in reduce_dtype")
def check_accumulation(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Gradients of 256 and 1 accumulated without synchronisation, reduce_dtype float32: 257."""
    yield from case.each("gradient", [*world.threads(2, _accumulated, backend)], repr([[[257.0] * WIDTH] * WIDTH]))


def _mixed_dtypes(rank: int, backend: Backend) -> str:
    del rank, backend
    layers = training.model()
    layers[1].to(torch.float16)
    fully_shard(layers, mesh=mesh(2))
    attempt("forward", layers, torch.ones(2, WIDTH))
    return "no error"


@promise("fsdp2-one-dtype-a-group", 37, source="https://github.com/pytorch/pytorch/issues/156784")
def check_one_dtype(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """A group of float32 and float16 parameters is refused, not cast."""
    try:
        seen = world.threads(2, _mixed_dtypes, backend)[0]
    except Raised as raised:
        seen = f"{type(raised.error).__name__}: {'uniform' in str(raised.error)}"
    yield case.exact("refusal, says uniform", actual=seen, expected="AssertionError: True")


def _inputs(rank: int, backend: Backend, *, cast: bool) -> str:
    del rank, backend
    seen = []
    inner = training.model()
    inner.register_forward_pre_hook(lambda _, args: seen.append(str(args[0].dtype)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=cast)
    fully_shard(inner, mesh=mesh(2), mp_policy=policy)
    data = torch.ones(2, WIDTH, dtype=torch.float32 if cast else torch.bfloat16)
    attempt("forward", inner, data)
    inner[0].register_forward_pre_hook(lambda _, args: seen.append(str(args[0].dtype)))
    attempt("forward", inner, data)
    return seen[-1]


@promise("fsdp2-cast-inputs", 38, source=POLICY, variants=("on", "off"))
def check_inputs(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """cast_forward_inputs casts float32 inputs to param_dtype; off, they arrive as they are given."""
    program = functools.partial(_inputs, cast=case.variant == "on")
    yield from case.each("dtype of the inner input", [*world.threads(2, program, backend)], "torch.bfloat16")


def _norms(rank: int, backend: Backend, *, remedy: str) -> str:
    del rank, backend
    inner = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    low, own = MixedPrecisionPolicy(param_dtype=torch.float16), MixedPrecisionPolicy()
    for layer in inner:
        chosen = own if remedy == "norm-apart" and isinstance(layer, nn.BatchNorm2d) else low
        fully_shard(layer, mesh=mesh(2), mp_policy=chosen)
    if remedy == "buffers-cast":
        inner[1].running_mean, inner[1].running_var = inner[1].running_mean.half(), inner[1].running_var.half()
    data = torch.ones(2, 1, 2, 2)
    hidden = inner[0](data)
    return outcome(inner[1], hidden.float() if remedy == "norm-apart" else hidden)


def outcome(function: Any, *args: Any) -> str:
    """The dtype of what it gives, or the type of what it raises."""
    try:
        return str(attempt("forward", function, *args).dtype)
    except Raised as raised:
        return type(raised.error).__name__


@promise(
    "fsdp2-batch-norm",
    39,
    source="https://pytorch.org/docs: torch.distributed.fsdp, test_norm_modules",
    only="cpu",
    variants=("as-it-is", "norm-apart", "buffers-cast"),
)
def check_batch_norm(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """BatchNorm with float32 buffers under a float16 policy raises; two remedies give a result."""
    expected = {"as-it-is": "RuntimeError", "norm-apart": "torch.float32", "buffers-cast": "torch.float16"}
    seen = world.threads(2, functools.partial(_norms, remedy=case.variant), backend)
    yield from case.each("outcome", [*seen], expected[case.variant])


@promise("fsdp2-policy-is-no-region", 40, source="https://github.com/pytorch/torchtitan/issues/700")
def check_policy_is_no_region(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """softmax under a bfloat16 policy stays in bfloat16; CUDA's region around it gives float32, as its rules say."""

    def program(_: int, backend: Backend, *, region: bool) -> str:
        inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softmax(-1))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        fully_shard(inner, mesh=mesh(2), mp_policy=policy)
        with backend.region(enabled=region):
            return str(attempt("forward", inner, torch.ones(2, WIDTH)).dtype)

    # The CPU's rules leave softmax in the dtype of the layer before it.
    inside = "torch.float32" if backend.device_type == "cuda" else f"torch.{backend.dtype}"
    for region, expected in ((False, "torch.bfloat16"), (True, inside)):
        seen = world.threads(2, functools.partial(program, region=region), backend)
        yield from case.each(f"softmax, region {region}", [*seen], expected)


def _recomputed(rank: int, backend: Backend, *, recompute: bool) -> str:
    del rank, backend
    seen = []
    inner = training.model()
    inner[0].register_forward_hook(lambda _, args, output: seen.append((str(args[0].dtype), str(output.dtype))))

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, data: torch.Tensor) -> Any:
            return checkpoint(self.inner, data, use_reentrant=False) if recompute else self.inner(data)

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    wrapped: Any = fully_shard(Checkpointed(), mesh=mesh(2), mp_policy=policy)
    attempt("backward", attempt("forward", wrapped, torch.ones(2, WIDTH)).sum().backward)
    return repr(seen)


@promise("fsdp2-recompute", 42, source="torch.utils.checkpoint: the recomputed forward is the first one")
def check_recompute(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """Recomputed in the backward pass, a layer sees inputs and gives outputs of the dtypes of its first forward."""
    once = ("torch.bfloat16", "torch.bfloat16")
    for recompute, times in ((False, 1), (True, 2)):
        seen = world.threads(2, functools.partial(_recomputed, recompute=recompute), backend)
        yield from case.each(f"inputs and outputs, recompute {recompute}", [*seen], repr([once] * times))


def fsdp1(inner: nn.Module, strategy: str = "FULL_SHARD", policy: MixedPrecision | None = None) -> Fsdp1:
    return Fsdp1(
        inner,
        device_id=device(),
        sharding_strategy=ShardingStrategy[strategy],
        mixed_precision=policy,
        use_orig_params=True,
    )


def _clipped(rank: int, backend: Backend, *, form: str) -> float:
    wrapped: Any = _wrap_for(form)(training.model())
    scaler, optimizer = backend.scaler(**SETTINGS), torch.optim.SGD(wrapped.parameters(), lr=0.125)
    if form.startswith("fsdp1"):
        scaler = sharded_scaler(backend)
    training.backward(wrapped, training.batch(rank, 0), scaler, backend)
    attempt("unscale_", scaler.unscale_, optimizer)
    if form == "fsdp1":
        return float(attempt("clip", wrapped.clip_grad_norm_, 1.0))
    norm = attempt("clip", nn.utils.clip_grad_norm_, wrapped.parameters(), 1.0)
    return float(training.whole(norm))


def _wrap_for(form: str) -> Any:
    return {"fsdp2": fsdp2, "hsdp": _hsdp}.get(form, fsdp1)


@promise("clip", 25, 43, source=JOINED, variants=("fsdp1", "fsdp1-by-torch", "fsdp2", "hsdp"))
def check_clip(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """The norm that clipping uses is that of the whole gradient, on every rank."""
    size = 4 if case.variant == "hsdp" else 2
    with torch.random.fork_rng(devices=[]):
        plain, scaler = training.model(), backend.scaler(**SETTINGS)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.125)
    training.backward(plain, torch.cat([training.batch(rank, 0) for rank in range(size)]), scaler, backend)
    scaler.unscale_(optimizer)
    squares = sum(it.grad.double().square().sum().item() for it in plain.parameters() if it.grad is not None)
    expected = math.sqrt(squares)
    for rank, norm in enumerate(world.threads(size, functools.partial(_clipped, form=case.variant), backend)):
        same = math.isclose(norm, expected, rel_tol=2**-20)
        yield case.exact(f"rank {rank}: norm", actual=expected if same else norm, expected=expected)


def _saved(rank: int, backend: Backend) -> training.End:
    def made(backend: Backend) -> Any:
        first = backend.scaler(**{**SETTINGS, "init_scale": 32.0})
        first.scale(torch.zeros(()))
        buffer = io.BytesIO()
        torch.save(first.state_dict(), buffer)
        buffer.seek(0)
        second = backend.scaler(**SETTINGS)
        attempt("load_state_dict", second.load_state_dict, torch.load(buffer, weights_only=True))
        return second

    return training.train(rank, backend, Plan(wrap=fsdp2, scaler=made, steps=1))


@promise("resumed", 46, source=SAME)
def check_resumed(case: DistributedRow, backend: Backend) -> Iterator[Finding]:
    """A scaler's state saved and loaded on each rank: the scale and the step are those of the saved one."""
    seen = world.threads(2, _saved, backend)
    yield from case.each("scale", [it.scale for it in seen], 32.0)
    yield from case.each("tracker", [it.tracker for it in seen], 1)
    yield from equal(case, seen)
