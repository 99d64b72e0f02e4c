"""Planted faults in the emulation: each promise has a fault that breaks it, and a probe that the fault must fail.

A fault counts as caught only when the probe's own assertion fails: not by a crash, an import error or a time-out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from amp_checks.backends.observe import observe
from amp_checks.core import NotEmulated
from amp_checks.emulation import emulate, numerics, patches, plans, pretend, region, rules, shims
from amp_checks.emulation.engine import Engine
from amp_checks.emulation.plans import Plan
from amp_checks.emulation.wrapper import Codec
from amp_checks.torch_api import private

Patch = pytest.MonkeyPatch


def low(device: str = "cuda", dtype: torch.dtype = torch.float16) -> Any:
    return torch.autocast(device, dtype=dtype)


def x() -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


class Casts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count += func is torch.ops.aten._to_copy.default and out.dtype is torch.float16
        return out


# --- Probes: each holds on the healthy emulation. ---------------------------------------------------------------------


def restores_state() -> None:
    before = torch.cuda.amp.common.amp_definitely_not_available
    with emulate("cuda"):
        assert torch.cuda.amp.common.amp_definitely_not_available is not before
    assert torch.cuda.amp.common.amp_definitely_not_available is before


def restores_state_after_an_exception() -> None:
    before = torch.overrides._get_current_function_mode_stack()
    with contextlib.suppress(ZeroDivisionError), emulate("cuda"):
        raise ZeroDivisionError
    assert region.current() is None
    assert torch.overrides._get_current_function_mode_stack() == before


def caches_weights() -> None:
    weight = nn.Parameter(x())
    with Casts() as casts, emulate("cuda"), low():
        x() @ weight @ weight @ weight
    assert casts.count == 2


def does_not_cache_views() -> None:
    view = x().view(4, 4).requires_grad_()
    assert view._is_view()
    with Casts() as casts, emulate("cuda"), low():
        x() @ view @ view
    assert casts.count == 3


def keeps_gradients() -> None:
    weight = nn.Parameter(x())
    with emulate("cuda"), low():
        out = (x() @ weight).float().sum()
    assert out.requires_grad
    assert torch.autograd.grad(out, weight, allow_unused=True)[0] is not None


def keeps_identity() -> None:
    tensor, out = x(), torch.empty(4, 4)
    with emulate("cuda"), low():
        assert tensor.addmm_(x(), x()) is tensor
        assert torch.mm(x(), x(), out=out) is out


def keeps_identity_within_a_call() -> None:
    attention, batch = nn.MultiheadAttention(4, 2), x().view(4, 1, 4)
    with emulate("cuda"), observe() as calls, low():
        attention(batch, batch, batch)  # asks whether query is key, and then projects them in one
    assert [call.op for call in calls].count("aten::linear") == 2


def sees_a_removed_rule() -> None:
    with emulate("cuda"), low():
        F.linear(x(), x())
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("linear", torch.library.fallthrough_kernel, "AutocastCUDA")
        try:
            assert F.linear(x(), x()).dtype is torch.float16  # decomposed: the matmul inside has a rule
        finally:
            library._destroy()


def sees_an_added_rule() -> None:
    key = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastCUDA"))

    def rule(value: Tensor) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            return torch.ops.aten.exp2.default(value.half())

    with emulate("cuda"), low():
        torch.exp2(x())
        library = torch.library.Library("aten", "IMPL")
        library.impl("exp2", rule, "AutocastCUDA")
        try:
            assert torch.exp2(x()).dtype is torch.float16
        finally:
            library._destroy()


def applies_rules() -> None:
    with emulate("cuda"), low():
        assert torch.mm(x(), x()).dtype is torch.float16
        assert torch.softmax(x().half(), -1).dtype is torch.float32


def gate_does_not_lean_on_the_real_rules() -> None:
    """With device "cpu", a rule that the engine misses must not be made up for by torch's own, inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "plan", lambda func, rules: Plan.SKIP)
        with emulate("cpu"), low("cpu", torch.bfloat16):
            assert torch.mm(x(), x()).dtype is torch.float32


def decomposes_composites() -> None:
    net = nn.LSTM(4, 3)
    with emulate("cuda"), low():
        assert net(x())[0].dtype is torch.float16


def enters_kernels_that_reach_rules() -> None:
    weight = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1))
    with low("cpu", torch.bfloat16):
        expected = F.bilinear(x(), x(), weight)
    with emulate("cpu"), low("cpu", torch.bfloat16):
        assert torch.equal(F.bilinear(x(), x(), weight), expected)


def backward_finds_the_emulation_on() -> None:
    weight = nn.Parameter(x())
    seen: list[object] = []

    def product(value: Tensor) -> Tensor:
        out = value @ value
        seen.append(out.dtype)
        return out

    with emulate("cuda"), low():
        out = checkpoint(product, weight, use_reentrant=True)
        out.float().sum().backward()
        weight.register_hook(lambda gradient: seen.append(gradient.device.type))
        (x() @ weight).float().sum().backward()
    assert seen == [torch.float16, torch.float16, "cuda"]


def refuses_what_it_lacks() -> None:
    with emulate("cuda"):
        try:
            torch.cuda.CUDAGraph()
        except NotEmulated:
            return
        except RuntimeError as error:
            raise AssertionError("refused in torch's words, not the emulation's") from error
    raise AssertionError("not refused")


def leaves_other_threads_alone() -> None:
    seen: list[str] = []
    with emulate("cuda"):
        thread = threading.Thread(target=lambda: seen.append(str(region.current())))
        thread.start()
        thread.join()
    assert seen == ["None"]


def saves_low_bytes() -> None:
    saved: list[torch.dtype] = []
    weight = x().half().requires_grad_()

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.dtype)
        return tensor

    with emulate("cuda", numerics="float32"), low(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        torch.mm(x().half(), weight)
    assert saved
    assert set(saved) == {torch.float16}


def notices_changes_of_saved_tensors() -> None:
    weight, other = x().half().requires_grad_(), x().half()
    with emulate("cuda", numerics="float32"), low():
        out = torch.mm(other, weight)
    other.add_(1)
    said = ""
    try:
        out.sum().backward()
    except RuntimeError as error:
        said = str(error)
    assert "inplace" in said


def computes_in_float32() -> None:
    q = torch.randn(1, 1, 64, 32, generator=torch.Generator().manual_seed(2)).bfloat16()
    with emulate("cuda", numerics="float32"), low(dtype=torch.bfloat16):
        actual = F.scaled_dot_product_attention(q, q, q)
    wide = q.float()
    assert torch.equal(actual, F.scaled_dot_product_attention(wide, wide, wide).bfloat16())


def frees_parameters() -> None:
    parameter = nn.Parameter(x())
    watched = weakref.ref(parameter)
    with emulate("cuda"), low():
        with torch.no_grad():
            x() @ parameter
        del parameter
        gc.collect()
        torch.clear_autocast_cache()
        assert watched() is None


def observes() -> None:
    with emulate("cuda"), low():
        torch.relu(x())
        with observe() as calls:
            torch.relu(x())
            torch.mm(x(), x())
    assert calls[0].op == "aten::relu"
    assert calls[-1].op == "aten::mm"
    assert calls[-1].input_dtypes == (torch.float16,) * 2


def speaks_of_the_device() -> None:
    with emulate("cuda"):
        assert x().device == torch.device("cuda", 0)
        assert x().is_cuda
        assert torch.zeros(1, device="cuda").device.type == "cuda"


def is_available() -> None:
    with emulate("cuda"):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1


def draws_what_the_cpu_draws() -> None:
    def draw() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return F.gumbel_softmax(x(), tau=2.0), F.rrelu(-x(), training=True)

    expected = draw()
    with emulate("cuda"), low():
        assert all(map(torch.equal, expected, draw()))


def fuses_cells_in_float32() -> None:
    gates = torch.randn(2, 12, generator=torch.Generator().manual_seed(0)).half()
    cell = torch.randn(2, 3, generator=torch.Generator().manual_seed(1)).half()
    with emulate("cuda"), low():
        hidden, new_cell, _ = torch.ops.aten._thnn_fused_lstm_cell(gates, gates, cell)
    entry, forget, candidate, exit_ = (2 * gates.float()).chunk(4, 1)
    wanted = forget.sigmoid() * cell.float() + entry.sigmoid() * candidate.tanh()
    assert torch.equal(new_cell, wanted.half())
    assert torch.equal(hidden, (exit_.sigmoid() * wanted.tanh()).half())


# --- Faults. ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A fault, by what it does to the emulation, and the probe that must fail on it."""

    name: str
    plant: Callable[[Patch], object]
    probe: Callable[[], None]


def unwrap_through(change: Callable[[Tensor], Tensor]) -> Callable[[Patch], None]:
    unwrap = Codec.unwrap

    def changed(self: Codec, value: Any) -> Any:
        found = unwrap(self, value)
        return change(found) if isinstance(found, Tensor) and found is not value else found

    return lambda patch: patch.setattr(Codec, "unwrap", changed)


def no_table_row(name: str) -> Callable[[Patch], None]:
    table = patches.table
    return lambda patch: patch.setattr(patches, "table", lambda: (row for row in table() if row[1] != name))


def leaf_wrapper_of_one_call(patch: Patch) -> None:
    wrap_leaf = Codec._wrap_leaf

    def forget(self: Codec, tensor: Tensor) -> Any:
        self._leaves.clear()
        wrapped = wrap_leaf(self, tensor)
        self._leaves.clear()
        return wrapped

    patch.setattr(Codec, "_wrap_leaf", forget)


def strong_leaf(patch: Patch) -> None:
    wrap_leaf, kept = Codec._wrap_leaf, []

    def keep(self: Codec, tensor: Tensor) -> Any:
        kept.append(tensor)
        return wrap_leaf(self, tensor)

    patch.setattr(Codec, "_wrap_leaf", keep)


def seen_forgotten(patch: Patch) -> None:
    wrap = Codec.wrap
    patch.setattr(Codec, "wrap", lambda self, value, seen: wrap(self, value, {}))


def composites_whole(patch: Patch) -> None:
    patch.setattr(private, "is_composite_implicit", lambda name: False)


def one_region_for_all_threads(patch: Patch) -> None:
    class Shared:
        pass

    patch.setattr(region, "_local", Shared())


def visible_keys(patch: Patch) -> None:
    init = Engine.__init__

    def lean(self: Engine, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.hidden_keys = None

    patch.setattr(Engine, "__init__", lean)


def never_uninstalled(patch: Patch) -> None:
    uninstall = patches.uninstall
    patch.setattr(patches, "uninstall", lambda: None)
    late.append(uninstall)


def region_left_on(patch: Patch) -> None:
    original = emulate

    @contextlib.contextmanager
    def leaky(device_type: str, **settings: Any) -> Iterator[None]:
        made = original(device_type, **settings)
        made.__enter__()
        left.append(made)
        yield
        left.remove(made)
        made.__exit__(None, None, None)

    def finish() -> None:
        for made in left:
            made.__exit__(None, None, None)

    left: list[Any] = []

    late.append(finish)
    patch.setitem(globals(), "emulate", leaky)


def device_as_it_is(patch: Patch) -> None:
    patch.delitem(pretend.HANDLERS, torch.Tensor.device.__get__)


def without_trilinear(patch: Patch) -> None:
    patch.delitem(rules.KERNELS_THAT_REACH_RULES, "aten::_trilinear")


late: list[Callable[[], None]] = []
"""What puts right, after a mutant, what it left behind."""


MUTANTS = (
    Mutant(name="torch stays patched", plant=never_uninstalled, probe=restores_state),
    Mutant(name="no exit after an exception", plant=region_left_on, probe=restores_state_after_an_exception),
    Mutant(name="weight cache not seen", plant=leaf_wrapper_of_one_call, probe=caches_weights),
    Mutant(
        name="views taken for leaves",
        plant=lambda patch: patch.setattr("amp_checks.emulation.wrapper._is_view", lambda tensor: False),
        probe=does_not_cache_views,
    ),
    Mutant(name="gradient lost", plant=unwrap_through(lambda tensor: tensor.detach()), probe=keeps_gradients),
    Mutant(name="identity broken", plant=unwrap_through(lambda tensor: tensor.view_as(tensor)), probe=keeps_identity),
    Mutant(name="a tensor wrapped twice in a call", plant=seen_forgotten, probe=keeps_identity_within_a_call),
    Mutant(
        name="rules read once, a rule lost",
        plant=lambda patch: patch.setattr(rules.RULES_CHANGED, "tell", lambda: None),
        probe=sees_a_removed_rule,
    ),
    Mutant(
        name="rules read once, a rule gained",
        plant=lambda patch: patch.setattr(rules.RULES_CHANGED, "tell", lambda: None),
        probe=sees_an_added_rule,
    ),
    Mutant(
        name="ops with rules skipped",
        plant=lambda patch: patch.setattr(plans, "_op_is_harmless", lambda op, rules: True),
        probe=applies_rules,
    ),
    Mutant(name="real rules behind the gate", plant=visible_keys, probe=gate_does_not_lean_on_the_real_rules),
    Mutant(name="composites run whole", plant=composites_whole, probe=decomposes_composites),
    Mutant(
        name="kernels not entered",
        plant=without_trilinear,
        probe=enters_kernels_that_reach_rules,
    ),
    Mutant(
        name="backward without the mode",
        plant=no_table_row("_engine_run_backward"),
        probe=backward_finds_the_emulation_on,
    ),
    Mutant(name="no refusal", plant=no_table_row("CUDAGraph"), probe=refuses_what_it_lacks),
    Mutant(name="one region for all threads", plant=one_region_for_all_threads, probe=leaves_other_threads_alone),
    Mutant(
        name="widened tensors saved",
        plant=lambda patch: patch.setattr(
            numerics._Saver, "pack", lambda self, saved: numerics._Kept(saved, self.outer) if self.outer else saved
        ),
        probe=saves_low_bytes,
    ),
    Mutant(
        name="saved tensors unwatched",
        plant=lambda patch: patch.setattr(numerics._Low, "unpack", lambda self: self.saved.float()),
        probe=notices_changes_of_saved_tensors,
    ),
    Mutant(
        name="float32 mode runs half kernels",
        plant=lambda patch: patch.setattr(numerics, "applies", lambda args, kwargs: False),
        probe=computes_in_float32,
    ),
    Mutant(name="parameters kept alive", plant=strong_leaf, probe=frees_parameters),
    Mutant(
        name="skipped while observed",
        plant=lambda patch: patch.setattr(region.Region, "forget_plans", lambda self: None),
        probe=observes,
    ),
    Mutant(
        name="device not pretended",
        plant=device_as_it_is,
        probe=speaks_of_the_device,
    ),
    Mutant(
        name="a device that is not there",
        plant=no_table_row("is_available"),
        probe=is_available,
    ),
    Mutant(
        name="an op run twice",
        plant=lambda patch: patch.setattr(
            Engine, "_run", lambda self, op, args, kwargs: (op(*args, **kwargs), op(*args, **kwargs))[1]
        ),
        probe=draws_what_the_cpu_draws,
    ),
    Mutant(
        name="fused cell rounds twice",
        plant=lambda patch: patch.setitem(
            shims.SHIMS,
            torch.ops.aten._thnn_fused_lstm_cell.default,
            lambda op, gates, other, cell, *biases: rounded_twice(gates, other, cell),
        ),
        probe=fuses_cells_in_float32,
    ),
)


def rounded_twice(gates: Tensor, other: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    entry, forget, candidate, exit_ = (gates + other).chunk(4, 1)
    new = forget.sigmoid() * cell + entry.sigmoid() * candidate.tanh()
    return exit_.sigmoid() * new.tanh(), new, torch.cat([entry, forget, candidate, exit_], 1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_probe_holds_and_the_mutant_fails_it(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant.probe()
    try:
        with monkeypatch.context() as patch:
            mutant.plant(patch)
            with pytest.raises(AssertionError):
                mutant.probe()
    finally:
        while late:
            late.pop()()
    mutant.probe()
