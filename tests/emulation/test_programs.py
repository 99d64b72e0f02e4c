"""What programs for CUDA do besides training: identity, views, regions, attention, random numbers, data, devices."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import weakref
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from emulated import mlp, region
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from amp_checks.backends.observe import observe
from amp_checks.emulation import emulate

pytestmark = pytest.mark.usefixtures("emulated_cuda")


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


def test_tensors_become_numbers() -> None:
    """Also under an observer, which sees every op."""
    one = torch.tensor([3.5], device="cuda")
    for watched in (contextlib.nullcontext(), observe()):
        with region(), watched:
            assert (int(one), float(one[0]), complex(one), bool(one)) == (3, 3.5, 3.5 + 0j, True)
            assert [10, 11, 12][torch.tensor(1, device="cuda")] == 11
            assert one.is_nonzero()
            assert torch.is_nonzero(one)
            assert f"{one[0]:.1f}" == "3.5"


def test_functions_of_the_user_see_what_torch_would_show_them() -> None:
    """Functions of ``torch.nn.functional`` ask the modes before they run: the user's are asked too, in their order."""

    class Noting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            noted.append(func)
            return func(*args, **(kwargs or {}))

    noted: list[Any] = []
    x = torch.ones(2, device="cuda")
    with region():
        F.relu(x)
        with Noting():
            F.relu(x)
        assert F.relu in noted
    noted.clear()
    with Noting(), emulate("cuda"), region():
        for _ in range(2):
            noted.clear()
            F.relu(x)
            assert F.relu in noted
        with pytest.raises(TypeError):
            F.relu(x, True, 3)  # type: ignore[call-arg]
        assert (x @ torch.ones(2, 2)).dtype is torch.float16


class Noted(Tensor):
    """A tensor of the user's own kind, which is asked about each function."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def test_tensors_of_the_users_own_kind_are_asked() -> None:
    own = torch.ones(2).as_subclass(Noted)
    with region():
        for _ in range(2):
            Noted.seen.clear()
            assert type(F.relu(own)) is Noted
            assert F.relu in Noted.seen


def test_ldexp_runs_where_a_device_has_a_kernel_of_its_own() -> None:
    x, whole, real = torch.ones(3), torch.tensor([1, 2, 3]), torch.ones(3)
    with region():
        assert torch.equal(torch.ldexp(x, whole), torch.tensor([2.0, 4.0, 8.0]))
        assert torch.equal(torch.ldexp(x, real), torch.full((3,), 2.0))


def test_another_device_type_is_not_cast() -> None:
    x = torch.randn(4, 4)
    with torch.autocast("xpu", dtype=torch.float16):
        assert (x @ x).dtype is torch.float32


def test_ops_called_by_overload_are_cast() -> None:
    x = torch.randn(4, 4, device="cuda")
    with region():
        assert torch.ops.aten.mm(x, x).dtype is torch.float16
        assert torch.ops.aten.mm.default(x, x).dtype is torch.float16


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


@pytest.mark.parametrize("make", ["new_tensor", "new_zeros", "new_ones", "new_full", "new_empty", "new"])
def test_tensors_like_one_that_a_region_made(make: str) -> None:
    arguments = {"new_tensor": ([0.5, 1.0],), "new": ([0.5, 1.0],), "new_full": ((2,), 0.5)}.get(make, ((2,),))
    with region():
        low = torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
        made = getattr(low, make)(*arguments)
        there = getattr(low, make)(*arguments, device="cuda") if make != "new" else made
    for tensor in (made, there):
        assert (tensor.dtype, tensor.is_cuda, tuple(tensor.shape)) == (torch.float16, True, (2,))


def test_sparse_and_meta_tensors_pass() -> None:
    sparse = torch.eye(4).to_sparse()
    with region():
        assert torch.sparse.mm(sparse, torch.ones(4, 4)).dtype in (torch.float32, torch.float16)
        meta = torch.randn(3, device="meta")
        assert (meta + 1).device.type == "meta"
