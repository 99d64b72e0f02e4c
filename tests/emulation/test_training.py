"""Whole training programs, as their users write them for CUDA, run unmodified under emulation."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import networks
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from emulated import mlp, region
from torch import Tensor, nn

from amp_checks.backends.observe import OpCall, observe
from amp_checks.core import CastPolicy
from amp_checks.emulation import Numerics, emulate
from amp_checks.records import cast_policy

inside = pytest.mark.usefixtures("emulated_cuda")
LOW = (torch.float16, torch.bfloat16)


Watch = Callable[[], AbstractContextManager[Any]]


def steps(
    model: nn.Module, batch: Tensor, optimizer: Any, *, dtype: torch.dtype, count: int = 3, watch: Watch = nullcontext
) -> list[float]:
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=dtype is torch.float16)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype), watch():
            loss = model(batch).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    name: getattr(torch.optim, name)
    for name in ("SGD Adam AdamW Adamax Adagrad Adadelta ASGD NAdam RAdam RMSprop Rprop Adafactor Muon").split()
    if hasattr(torch.optim, name)
}


@inside
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains(name: str) -> None:
    model = mlp()
    parameters = [p for p in model.parameters() if p.ndim == 2 or name != "Muon"]
    optimizer = OPTIMIZERS[name](parameters) if name != "SGD" else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    before = copy.deepcopy(list(model.parameters()))
    losses = steps(model, torch.randn(8, 4, device="cuda"), optimizer, dtype=torch.float16)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any(not torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))
    assert losses[-1] < losses[0] or name in ("Rprop", "ASGD", "Adadelta")


@inside
@pytest.mark.parametrize(
    "fused", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["loop", "foreach", "fused"]
)
def test_implementations_of_adam_agree(fused: dict[str, Any]) -> None:
    model = mlp()
    steps(model, torch.randn(8, 4, device="cuda"), torch.optim.Adam(model.parameters(), **fused), dtype=torch.float16)
    torch.manual_seed(0)
    other = mlp()
    steps(other, torch.randn(8, 4, device="cuda"), torch.optim.Adam(other.parameters()), dtype=torch.float16)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@inside
def test_lbfgs_and_sparse_adam() -> None:
    model = nn.Linear(4, 1, device="cuda")
    batch = torch.randn(8, 4, device="cuda")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        with region():
            loss = model(batch).float().pow(2).mean()
        loss.backward()
        result: Tensor = loss
        return result

    first = optimizer.step(closure)
    assert closure() < first

    table = nn.Embedding(10, 4, sparse=True, device="cuda")
    sparse = torch.optim.SparseAdam(table.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    with region():
        loss = (table(torch.tensor([1, 2, 1], device="cuda")) @ torch.randn(4, 2, device="cuda")).float().sum()
    scaler.scale(loss).backward()
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    scaler.step(sparse)
    scaler.update()
    assert torch.isfinite(table.weight).all()


@inside
def test_scaler_skips_and_backs_off() -> None:
    model = nn.Linear(2, 1, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
    before = model.weight.detach().clone()
    with region():
        loss = model(torch.full((1, 2), 6e4, device="cuda")).sum()
    scaler.scale(loss.float()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, model.weight)
    assert scaler.get_scale() == 2.0**15


def recurrent(kind: str) -> nn.Module:
    net: nn.Module = getattr(nn, kind)(6, 5, 2, batch_first=True, bidirectional=True)
    return net


class Outputs(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.net(batch)[0]
        return out


class Conv(nn.Module):
    """A convolution, batch norm, residual, pooling: the parts of a resnet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.adaptive_avg_pool2d(F.relu(self.norm(self.conv(x)) + x), 1).flatten(1))
        return out


def encoder(activation: str = "relu", **settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=activation, **settings)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: Outputs(recurrent("LSTM")), (3, 7, 6)),
    "gru": (lambda: Outputs(recurrent("GRU")), (3, 7, 6)),
    "rnn": (lambda: Outputs(recurrent("RNN")), (3, 7, 6)),
    "lstm with projection": (lambda: Outputs(nn.LSTM(6, 5, proj_size=3, batch_first=True)), (3, 7, 6)),
    "convolution": (Conv, (2, 3, 8, 8)),
    "transformer": (encoder, (2, 5, 8)),
    "transformer, gelu, norm first": (lambda: encoder("gelu", norm_first=True), (2, 5, 8)),
    "group norm": (lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.GroupNorm(2, 4), nn.GELU()), (2, 4, 9)),
    "transposed convolution": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.PReLU()), (2, 2, 5, 5)),
    "bilinear": (lambda: Twice(nn.Bilinear(4, 4, 3)), (5, 4)),
}


class Twice(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.net(batch, batch)
        return out


@inside
@pytest.mark.parametrize("dtype", LOW, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_models_train(name: str, dtype: torch.dtype) -> None:
    make, shape = MODELS[name]
    model = make().cuda()
    batch = torch.randn(shape).to("cuda")
    losses = steps(model, batch, torch.optim.SGD(model.parameters(), lr=0.05), dtype=dtype)
    assert all(torch.isfinite(p).all() and p.dtype is torch.float32 for p in model.parameters())
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())
    assert losses[-1] < losses[0]


@inside
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_gradients_near_float32() -> None:
    """Nothing is lost on the way: the gradients of each model are those of float32 within the low dtype's rounding."""
    for make, shape in MODELS.values():
        torch.manual_seed(1)
        model = make()
        model.train(mode=False)
        batch = torch.randn(shape)
        found = []
        for enabled in (False, True):
            model.zero_grad()
            with region(enabled=enabled):
                loss = model(batch).float().pow(2).sum()
            loss.backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        plain, emulated = found
        assert len(plain) == len(emulated) == len(list(model.parameters()))
        for one, other in zip(plain, emulated, strict=True):
            size = one.abs().max().item()
            torch.testing.assert_close(other, one, rtol=0.05, atol=0.05 * size + 1e-6)


@inside
def test_dtype_of_every_op_follows_the_policy() -> None:
    low = {"aten::linear", "aten::mm", "aten::addmm", "aten::bmm", "aten::matmul", "aten::conv2d"}
    high = {"aten::layer_norm", "aten::softmax.int", "aten::pow.Tensor_Scalar", "aten::mse_loss"}
    for make, shape in (MODELS["transformer"], MODELS["convolution"]):
        model = make()
        with observe() as calls, region():
            out = model(torch.randn(shape)).pow(2)
            F.mse_loss(out, torch.zeros_like(out)).sqrt()
        assert calls
        for call in calls:
            floating = {dtype for dtype in call.input_dtypes if dtype.is_floating_point}
            if call.op in low:
                assert floating == {torch.float16}, call
            if call.op in high:
                assert floating == {torch.float32}, call


NUMERICS: tuple[Numerics, ...] = ("native", "float32")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (networks.resnet18, (2, 3, 64, 64)),
    "lstm": (networks.lstm, (4, 5, 64)),
    "gru": (networks.gru, (4, 5, 64)),
    "transformer encoder": (networks.transformer, (2, 16, 128)),
}


def test_the_resnet18_is_the_published_one() -> None:
    model = networks.resnet18(1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512


@pytest.fixture
def no_denormals() -> Iterator[None]:
    """Gradients in float16 have many, and a processor takes them slowly."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("no_denormals")
@pytest.mark.parametrize(
    ("name", "numerics"),
    # The CPU's own half kernels take twenty seconds for a resnet18.
    [(name, numerics) for name in NETWORKS for numerics in NUMERICS if (name, numerics) != ("resnet18", "native")],
)
@pytest.mark.parametrize("dtype", LOW, ids=["float16", "bfloat16"])
def test_networks_train_and_every_op_follows_the_policy(name: str, numerics: Numerics, dtype: torch.dtype) -> None:
    """Three steps: parameters finite, every op in the dtype that the recorded table of CUDA's rules says."""
    train_network(name, numerics, dtype)


def train_network(name: str, numerics: Numerics, dtype: torch.dtype) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    seen: list[list[OpCall]] = []

    @contextmanager
    def watch() -> Iterator[None]:
        with observe() as calls:
            yield
        seen.append(calls)

    with emulate("cuda", numerics=numerics):
        model, batch = make().cuda(), torch.randn(shape, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        losses = steps(model, batch, optimizer, dtype=dtype, watch=watch)
        assert all(torch.isfinite(p).all() and p.dtype is torch.float32 for p in model.parameters())
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert losses[-1] < losses[0]
    assert len(seen) == 3
    for calls in seen:
        assert_follows_policy(calls, dtype)


def assert_follows_policy(calls: list[OpCall], dtype: torch.dtype) -> None:
    ruled = collections.Counter[CastPolicy]()
    for call in calls:
        name = call.op.removeprefix("aten::")
        rule = CastPolicy.LOWER_PRECISION_FP if name == "_cudnn_rnn" else cast_policy.of(name, "cuda")
        floating = {kind for kind in call.input_dtypes if kind.is_floating_point}
        if rule is CastPolicy.LOWER_PRECISION_FP:
            assert floating == {torch.float16 if name == "_cudnn_rnn" else dtype}, call
        elif rule in (CastPolicy.FP32, CastPolicy.FP32_SET_OPT_DTYPE):
            assert floating == {torch.float32}, call
        elif rule is CastPolicy.PROMOTE:
            assert len(floating) == 1, call
        ruled[rule] += 1
    assert ruled[CastPolicy.LOWER_PRECISION_FP]
    assert ruled[CastPolicy.FP32]


@inside
def test_gradient_accumulation_and_ema() -> None:
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cuda")
    for index in range(4):
        with region(), nullcontext():
            loss = model(torch.randn(8, 4, device="cuda")).float().pow(2).mean() / 2
        scaler.scale(loss).backward()
        if index % 2:
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            average.update_parameters(model)
    assert scaler.state_dict()["_growth_tracker"] == 2
    assert int(average.n_averaged) == 2
