"""Whole training programs, as their users write them for CUDA, run unmodified under emulation."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from amp_checks.emulation import emulate
from amp_checks.observe import observe

LOW = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    torch.manual_seed(0)
    with emulate("cuda"):
        yield


def region(**settings: Any) -> Any:
    return torch.autocast("cuda", dtype=torch.float16, **settings)


def steps(model: nn.Module, batch: Tensor, optimizer: Any, *, dtype: torch.dtype, count: int = 3) -> list[float]:
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=dtype is torch.float16)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = model(batch).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)).to("cuda")


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    name: getattr(torch.optim, name)
    for name in ("SGD Adam AdamW Adamax Adagrad Adadelta ASGD NAdam RAdam RMSprop Rprop Adafactor Muon").split()
    if hasattr(torch.optim, name)
}


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


def test_double_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
    x = torch.randn(5, 4, device="cuda", requires_grad=True)
    with region():
        out = model(x).float().sum()
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    gradient.pow(2).sum().backward()
    assert all(p.grad is not None for p in model[0].parameters())
    plain = nn.Sequential(*map(copy.deepcopy, model))
    plain.zero_grad()
    (gradient,) = torch.autograd.grad(plain(x).sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad, rtol=0.02, atol=0.02)


def test_backward_inside_the_region() -> None:
    model = mlp()
    with region():
        model(torch.randn(3, 4, device="cuda")).sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


def test_hooks_see_plain_tensors_and_a_working_mode() -> None:
    model = nn.Linear(4, 4, device="cuda")
    seen: list[tuple[type, torch.dtype, str]] = []

    def note(value: Tensor) -> None:
        seen.append((type(value), value.dtype, value.device.type))

    def note_gradient(module: nn.Module, inputs: Any, outputs: Any) -> None:
        note(outputs[0])

    model.register_forward_hook(lambda module, args, out: note(out))
    model.register_full_backward_hook(note_gradient)
    model.weight.register_hook(note)
    model.bias.register_post_accumulate_grad_hook(lambda parameter: note(parameter.grad))
    with region():
        out = model(torch.randn(3, 4, device="cuda", requires_grad=True))
        out.register_hook(lambda gradient: note(gradient @ gradient.T))
    with region():
        out.float().sum().backward()
    assert {kind for kind, _, _ in seen} == {Tensor}
    assert {device for _, _, device in seen} == {"cuda"}
    assert sorted(str(dtype) for _, dtype, _ in seen) == ["torch.float16"] * 3 + ["torch.float32"] * 2


def test_identity_views_and_versions() -> None:
    x = torch.randn(4, 4, device="cuda")
    out = torch.empty(4, 4, device="cuda")
    with region():
        assert torch.add(x, x, out=out) is out
        assert x.add_(1) is x
        assert x.to("cuda") is x
        assert x.cuda() is x
        assert x.contiguous() is x
        assert x.float() is x
        before = x._version
        x.mul_(2)
        assert x._version == before + 1
        view = x[1:]
        assert view._is_view()
        assert view._base is x
        assert x.t()._base is x
        view.zero_()
        assert x[1:].abs().sum() == 0
        assert type(torch.mm(x, x)) is Tensor
        assert torch.mm(x.half(), x.half(), out=torch.empty(4, 4, dtype=torch.float16)).dtype is torch.float16
        assert nn.Parameter(x).requires_grad
        pair = torch.max(x, dim=0)
        assert type(pair).__name__ == "max"
        assert pair.values.dtype is torch.float32


def test_in_place_and_out_are_not_cast() -> None:
    x = torch.randn(4, 4, device="cuda")
    with region():
        assert x.clone().addmm_(x, x).dtype is torch.float32
        assert torch.mm(x, x, out=torch.empty(4, 4)).dtype is torch.float32
        with pytest.raises(RuntimeError, match="dtype"):
            x.clone().addmm_(x, x.half())


def test_nested_and_disabled_regions() -> None:
    x = torch.randn(4, 4, device="cuda")
    with region():
        assert (x @ x).dtype is torch.float16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
            with torch.autocast("cuda", dtype=torch.bfloat16):
                assert (x @ x).dtype is torch.bfloat16
        assert (x @ x).dtype is torch.float16
    assert (x @ x).dtype is torch.float32

    @torch.autocast("cuda", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
    def decorated(value: Tensor) -> Tensor:
        return value @ value

    assert decorated(x).dtype is torch.bfloat16


def test_another_device_type_is_not_cast() -> None:
    x = torch.randn(4, 4)
    with torch.autocast("xpu", dtype=torch.float16):
        assert (x @ x).dtype is torch.float32


def test_ops_called_by_overload_are_cast() -> None:
    x = torch.randn(4, 4, device="cuda")
    with region():
        assert torch.ops.aten.mm(x, x).dtype is torch.float16
        assert torch.ops.aten.mm.default(x, x).dtype is torch.float16


class Doubling(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dtypes = [torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")]
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        assert [torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")] == ctx.dtypes
        return gradient @ weight.T, x.T @ gradient


class InFloat32(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert x.dtype is torch.float32
        assert not torch.is_autocast_enabled("cuda")
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        assert gradient.dtype is torch.float32
        out: Tensor = gradient @ x.T + x.T @ gradient
        return out


def test_custom_functions() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with region():
        out = Doubling.apply(x, x)  # type: ignore[no-untyped-call]
        assert out.dtype is torch.float16
    out.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float32
    half = x.detach().half().requires_grad_()
    with region():
        out = InFloat32.apply(half)  # type: ignore[no-untyped-call]
    assert out.dtype is torch.float32
    out.sum().backward()
    assert half.grad is not None
    assert half.grad.dtype is torch.float16


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpoint_recomputes_under_autocast(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)).cuda()
    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    dtypes: list[torch.dtype] = []
    model[0].register_forward_hook(lambda module, args, out: dtypes.append(out.dtype))

    def gradients(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        with region():
            out = call(x)
        out.float().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients(model)
    recomputed = gradients(lambda value: checkpoint(model, value, use_reentrant=reentrant))
    assert dtypes == [torch.float16] * 3
    assert all(map(torch.equal, plain, recomputed))


@pytest.mark.parametrize("mask", [None, "causal", "padding"])
@pytest.mark.parametrize("weights", [False, True], ids=["fused", "with weights"])
def test_attention_paths(mask: str | None, weights: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).cuda()
    x = torch.randn(2, 5, 8, device="cuda")
    settings: dict[str, Any] = {"need_weights": weights}
    if mask == "causal":
        settings["attn_mask"] = nn.Transformer.generate_square_subsequent_mask(5)
    if mask == "padding":
        settings["key_padding_mask"] = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for training in (True, False):
        attention.train(training)
        with torch.set_grad_enabled(training):
            expected = attention(x, x, x, **settings)[0]
            with region():
                actual = attention(x, x, x, **settings)[0]
        assert actual.dtype is torch.float16
        torch.testing.assert_close(actual.float(), expected, rtol=0.01, atol=0.01)


def test_scaled_dot_product_attention_kernels() -> None:
    q = torch.randn(2, 2, 5, 8, device="cuda", requires_grad=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel), region():
            out = F.scaled_dot_product_attention(q, q, q)
        assert out.dtype is torch.float16
        torch.autograd.grad(out.float().sum(), q)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # torch's own use of it
def test_vmap_and_functional_gradients() -> None:
    weight = torch.randn(4, 4, device="cuda")
    x = torch.randn(3, 4, device="cuda")
    with region():
        assert torch.vmap(lambda row: weight @ row)(x).dtype is torch.float16
        gradient = torch.func.grad(lambda w: (x @ w).float().pow(2).sum())(weight)
        assert gradient.dtype is torch.float32
        per_sample = torch.vmap(torch.func.grad(lambda w, row: (row @ w).float().pow(2).sum()), (None, 0))(weight, x)
        out, tangent, *_ = torch.func.jvp(lambda w: x @ w, (weight,), (torch.ones_like(weight),))
    assert out.dtype is tangent.dtype is torch.float16
    torch.testing.assert_close(per_sample.sum(0), gradient, rtol=0.02, atol=0.05)
    torch.testing.assert_close(gradient, 2 * x.T @ (x @ weight), rtol=0.02, atol=0.05)


def test_random_ops_draw_what_the_cpu_draws() -> None:
    def draw() -> list[Tensor]:
        torch.manual_seed(5)
        x = torch.ones(64, device="cuda")
        return [
            torch.randn(4, device="cuda"),
            F.dropout(x, 0.5),
            torch.dropout(x, 0.5, True),
            nn.Dropout1d(0.5)(x.view(1, 8, 8)),
            F.alpha_dropout(x, 0.5, training=True),
            torch.bernoulli(x / 2),
            torch.multinomial(x, 5),
            torch.rand_like(x),
            torch.randperm(9, device="cuda"),
            torch.normal(x, x),
            x.clone().uniform_(),
            F.gumbel_softmax(x, hard=True),
            F.rrelu(-x, training=True),
        ]

    plain = draw()
    with region():
        emulated = draw()
    assert [i for i, (a, b) in enumerate(zip(plain, emulated, strict=True)) if not torch.equal(a, b)] == []


class Rows(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), float(index))


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers: int) -> None:
    model = nn.Linear(4, 2, device="cuda")
    loader = torch.utils.data.DataLoader(Rows(), batch_size=3, num_workers=workers)
    with region():
        outs = [model(batch.to("cuda", non_blocking=True)) for batch in loader]
    assert [tuple(out.shape) for out in outs] == [(3, 2), (3, 2)]
    assert {out.dtype for out in outs} == {torch.float16}


def test_pickle_and_deepcopy_inside_a_region() -> None:
    model = mlp()
    with region():
        model(torch.randn(2, 4, device="cuda"))
        again = pickle.loads(pickle.dumps(model))
        copied = copy.deepcopy(model)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        copied.load_state_dict(state)
    for other in (again, copied):
        assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_parameters_die_with_their_last_reference() -> None:
    model = nn.Linear(4, 4, device="cuda")
    watched = weakref.ref(model.weight)
    with torch.no_grad(), region():
        model(torch.randn(2, 4, device="cuda"))
    del model
    gc.collect()
    assert watched() is None


def test_factories_under_a_device_context() -> None:
    with torch.device("cuda"):
        x = torch.zeros(3)
        layer = nn.Linear(3, 3)
    assert x.is_cuda
    assert not x.is_cpu
    assert x.get_device() == 0
    assert layer.weight.device == torch.device("cuda", 0)
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
        assert torch.get_default_device().type == "cuda"
    finally:
        torch.set_default_device(None)


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


def test_sparse_and_meta_tensors_pass() -> None:
    sparse = torch.eye(4).to_sparse()
    with region():
        assert torch.sparse.mm(sparse, torch.ones(4, 4)).dtype in (torch.float32, torch.float16)
        meta = torch.randn(3, device="meta")
        assert (meta + 1).device.type == "meta"


def test_saved_tensors_hooks_of_the_user() -> None:
    packed: list[Tensor] = []

    def pack(saved: Tensor) -> int:
        packed.append(saved)
        return len(packed) - 1

    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda index: packed[index]), region():
        out = (x @ x).float().pow(2).sum()
    out.backward()
    assert {tensor.dtype for tensor in packed} == {torch.float16, torch.float32}
    assert x.grad is not None

    with torch.autograd.graph.save_on_cpu(), region():
        out = (x @ x).float().pow(2).sum()
    out.backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_anomaly_mode_and_inference_mode() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), region():
        (x @ x).float().sum().backward()
    with torch.inference_mode(), region():
        out = x @ x
        assert out.dtype is torch.float16
        assert out.is_inference()


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
