"""What a region promises: state restored on every exit, live rules, refusals that say what to do, threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from amp_checks.backends import backend
from amp_checks.backends.observe import observe
from amp_checks.core import NotEmulated
from amp_checks.emulation import DEVICE_TYPES, LIMITS, emulate, registered_rules
from amp_checks.emulation.refusals import REFUSALS
from amp_checks.torch_api import state

DEVICES = [device for device in DEVICE_TYPES if device != "cpu"]


def patched_attributes() -> dict[str, object]:
    """Everything of torch that a region replaces, as it is now."""
    from amp_checks.emulation import patches

    return {
        f"{owner!r}.{name}": owner[name] if isinstance(owner, dict) else getattr(owner, name)
        for owner, name, _ in patches.table()
    }


def low(device: str = "cuda", **settings: Any) -> Any:
    return torch.autocast(device, dtype=torch.float16, **settings)


class Stop(Exception):
    pass


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("device", DEVICE_TYPES)
def test_everything_is_restored(device: str, raises: bool) -> None:
    attributes, before = patched_attributes(), state.capture()
    modes = torch.overrides._get_current_function_mode_stack()
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    try:
        with emulate(device), low(device):
            assert (x @ x).dtype is torch.float16
            with observe():
                torch.set_default_device(device)
                if raises:
                    raise Stop  # noqa: TRY301 - the exit under test
                torch.set_default_device(None)
    except Stop:
        torch.set_default_device(None)
    assert patched_attributes() == attributes
    assert torch.overrides._get_current_function_mode_stack() == modes
    assert state.restore(before) == []
    assert x.device.type == "cpu"
    assert not x.is_cuda
    assert not torch.is_autocast_enabled(device)


def test_outside_a_region_torch_is_its_own_again() -> None:
    with emulate("cuda"):
        pass
    with pytest.warns(UserWarning, match="CUDA is not available"):
        torch.autocast("cuda")
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not torch.amp.GradScaler("cuda").is_enabled()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_type(device: str) -> None:
    with emulate(device):
        x = torch.randn(3, 3, device=device, requires_grad=True)
        assert x.device == torch.device(device, 0)
        assert x.to(device) is x
        assert x.to(torch.device(device)) is x
        if hasattr(Tensor, f"is_{device}"):
            assert getattr(x, f"is_{device}")
        assert not x.is_cpu
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        with torch.autocast(device, dtype=torch.bfloat16):
            out = x @ x
            loss = torch.nn.functional.mse_loss(out, torch.zeros_like(out))
        scaler.scale(loss).backward()
        assert (out.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
        assert torch.cuda.is_available() == (device == "cuda")


def test_regions_nest_when_they_agree() -> None:
    with emulate("cuda"), emulate("cuda"), low():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float16
    with emulate("cuda"), pytest.raises(ValueError, match="leave the outer region first"), emulate("xpu"):
        pass
    with (
        emulate("cuda"),
        pytest.raises(ValueError, match="leave the outer region first"),
        emulate("cuda", numerics="float32"),
    ):
        pass


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="device_type must be one of cuda, cpu, xpu"), emulate("hpu"):
        pass
    with pytest.raises(ValueError, match="numerics must be"), emulate("cuda", numerics="half"):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="no autocast rules for device type 'tpu'"):
        registered_rules("tpu")
    with emulate("cuda"), pytest.raises(NotEmulated, match="one device is emulated"):
        torch.zeros(1, device="cuda:1")


# --- Rules are read live. -------------------------------------------------------------------------------------------


@pytest.fixture
def without_mm() -> Iterator[Callable[[], torch.library.Library]]:
    libraries = []

    def remove() -> torch.library.Library:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("mm", torch.library.fallthrough_kernel, "AutocastCUDA")
        libraries.append(library)
        return library

    yield remove
    for library in libraries:
        library._destroy()


def test_a_rule_removed_inside_a_region_is_seen(without_mm: Callable[[], torch.library.Library]) -> None:
    x = torch.ones(2, 2)
    with emulate("cuda"), low():
        assert "aten::mm" in registered_rules("cuda")
        assert torch.mm(x, x).dtype is torch.float16
        library = without_mm()
        assert "aten::mm" not in registered_rules("cuda")
        assert torch.mm(x, x).dtype is torch.float32
        library._destroy()
        assert "aten::mm" in registered_rules("cuda")
        assert torch.mm(x, x).dtype is torch.float16


def test_a_rule_removed_before_a_region_is_seen(without_mm: Callable[[], torch.library.Library]) -> None:
    library = without_mm()
    x = torch.ones(2, 2)
    with emulate("cuda"), low():
        assert torch.mm(x, x).dtype is torch.float32
    library._destroy()
    with emulate("cuda"), low():
        assert torch.mm(x, x).dtype is torch.float16


def test_the_loss_of_a_composite_rule_decomposes_it() -> None:
    x = torch.ones(2, 2)
    with emulate("cuda"), low():
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("linear", torch.library.fallthrough_kernel, "AutocastCUDA")
        with observe() as calls:
            torch.nn.functional.linear(x, x)
        library._destroy()
    assert "aten::linear" not in [call.op for call in calls]
    assert {"aten::matmul", "aten::mm"} & {call.op for call in calls}


def test_a_rule_added_inside_a_region_is_seen() -> None:
    x = torch.ones(2, dtype=torch.float32)
    key = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastCUDA"))

    def rule(value: Tensor) -> Tensor:
        with torch._C._ExcludeDispatchKeyGuard(key):
            out: Tensor = torch.ops.aten.exp2.default(value.half())
            return out

    with emulate("cuda"), low():
        assert torch.exp2(x).dtype is torch.float32
        library = torch.library.Library("aten", "IMPL")
        library.impl("exp2", rule, "AutocastCUDA")
        assert torch.exp2(x).dtype is torch.float16
        library._destroy()
        assert torch.exp2(x).dtype is torch.float32


@torch.library.custom_op("amp_checks_tests::twice_mm", mutates_args=())
def twice_mm(x: Tensor) -> Tensor:
    return 2 * (x @ x)


twice_mm.register_autograd(
    lambda ctx, gradient: 4 * gradient.float() @ ctx.saved_tensors[0].T,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("amp_checks_tests::with_rule", mutates_args=())
def with_rule(x: Tensor) -> Tensor:
    return x * 2


with_rule.register_autocast("cuda", torch.float16)


def test_custom_ops() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with emulate("cuda"), low():
        out = twice_mm(x)
        assert out.dtype is torch.float16  # its body's product has a rule
        assert with_rule(x.detach()).dtype is torch.float16
        assert torch.ops.amp_checks_tests.with_rule(x.detach()).dtype is torch.float16
    out.float().sum().backward()
    assert x.grad is not None


# --- Refusals. ------------------------------------------------------------------------------------------------------


def refused() -> dict[str, Callable[[], object]]:
    scripted = torch.jit.trace(lambda value: value @ value, torch.ones(2, 2))
    scripted._torchdynamo_inline = None  # as of one whose Python function torch has not kept
    module = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    return {
        "torch.cuda.CUDAGraph": lambda: torch.cuda.CUDAGraph(),  # noqa: PLW0108 - looked up when called
        "torch.cuda.graph": lambda: torch.cuda.graph(None),  # type: ignore[arg-type]
        "torch.cuda.make_graphed_callables": lambda: torch.cuda.make_graphed_callables(abs, ()),
        "cuda:1": lambda: torch.cuda.set_device(1),
        "torch.cuda.jiterator._create_jit_fn": lambda: torch.cuda.jiterator._create_jit_fn("int f() { return 1; }"),
        "torch.cuda.MemPool": lambda: torch.cuda.MemPool(),  # noqa: PLW0108
        "torch.cuda.nccl.all_reduce": lambda: torch.cuda.nccl.all_reduce([torch.ones(1)]),
        "ScriptFunction.__call__": lambda: scripted(torch.ones(2, 2)),
        "ScriptMethod.__call__": lambda: module(torch.ones(1, 2)),
        "nested tensor": lambda: torch.nn.functional.linear(
            torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)]), torch.ones(2, 2)
        ),
    }


REFUSED = (
    "torch.cuda.CUDAGraph,torch.cuda.graph,torch.cuda.make_graphed_callables,cuda:1,torch.cuda.jiterator._create_jit_fn,"
    "torch.cuda.MemPool,torch.cuda.nccl.all_reduce,ScriptFunction.__call__,"
    "ScriptMethod.__call__,nested tensor"
).split(",")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_what_lacks_and_what_to_change(what: str) -> None:
    call = refused()[what]
    with emulate("cuda"), low(), pytest.raises(NotEmulated) as caught:
        call()
    message = str(caught.value)
    assert what in message
    assert "the emulation lacks it, not AMP" in message
    assert any(word in message for word in ("write ", "leave ", "call ", "keep ", "pad ")), message


def test_what_was_compiled_before_runs_uncompiled() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise AssertionError("compiled")

    compiled = torch.compile(lambda value: value @ value, backend=broken)
    with emulate("cuda"), low():
        assert compiled(torch.ones(2, 2)).dtype is torch.float16
    with pytest.raises(Exception, match="compiled"):
        compiled(torch.ones(2, 2))


def test_refusals_keep_types_as_they_are() -> None:
    generator = torch.Generator()
    with emulate("cuda"):
        assert isinstance(generator, torch.Generator)
        assert issubclass(type(generator), torch.Generator)
        assert torch.randn(2, generator=torch.Generator().manual_seed(1)).shape == (2,)

        class Mine(torch.Generator):
            pass

    assert Mine.__mro__[1] is torch.Generator
    assert all(refusal.instead for refusal in REFUSALS)


def test_low_precision_that_the_cpu_lacks_and_the_device_has() -> None:
    half = torch.randn(1, 1, 4, 4, 4).half().requires_grad_()
    with emulate("cuda"), low():
        out = torch.nn.functional.avg_pool3d(half, 2)
        assert out.dtype is torch.float16
        assert torch.equal(out, torch.nn.functional.avg_pool3d(half.float(), 2).half())
        with torch.autocast("cuda", enabled=False):
            assert torch.equal(out, torch.nn.functional.avg_pool3d(half, 2))
        out.float().sum().backward()
        assert half.grad is not None
        assert half.grad.dtype is torch.float16
        with pytest.raises(NotEmulated, match=r"aten::rrelu_with_noise .* write x.float\(\)"):
            torch.nn.functional.rrelu(half, training=True)


def test_low_precision_that_the_device_lacks_too_is_the_ops_own_error() -> None:
    with emulate("cuda"), low(), pytest.raises(RuntimeError) as caught:
        torch.linalg.qr(torch.eye(3).half())
    assert not isinstance(caught.value, NotEmulated)


# --- Threads. -------------------------------------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> Any:
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def test_another_thread_knows_nothing_of_the_region() -> None:
    x = torch.ones(2, 2)

    def outside() -> tuple[str, bool, str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            disabled = torch.autocast("cuda")
        return x.device.type, disabled._enabled, str(caught[0].message)

    with emulate("cuda"), low():
        device, enabled, message = in_thread(outside)
        assert (device, enabled) == ("cpu", False)
        assert "CUDA is not available" in message
        assert in_thread(lambda: (x @ x).dtype) is torch.float32
        with pytest.raises((AssertionError, RuntimeError)) as caught:
            in_thread(lambda: torch.zeros(1, device="cuda"))
        assert not isinstance(caught.value, NotEmulated)
        assert (x @ x).dtype is torch.float16


def test_two_threads_in_regions_of_their_own() -> None:
    barrier = threading.Barrier(2)
    attributes = patched_attributes()

    def train(device: str, dtype: torch.dtype) -> list[Tensor]:
        # The generator is the process's: draws from it would depend on the other thread.
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(4, 4, generator=generator).requires_grad_()
        batch = torch.randn(4, 4, generator=generator)
        barrier.wait()
        with emulate(device):
            optimizer = torch.optim.SGD([weight], lr=0.1)
            scaler = torch.amp.GradScaler(device, init_scale=8.0)
            for _ in range(20):
                optimizer.zero_grad()
                with torch.autocast(device, dtype=dtype):
                    out = batch @ weight
                assert (out.dtype, weight.device.type) == (dtype, device)
                scaler.scale(out.float().pow(2).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        return [weight.detach()]

    together: dict[str, list[Tensor]] = {}
    jobs = {"cuda": torch.float16, "xpu": torch.bfloat16}
    threads = [
        threading.Thread(target=lambda d=device, t=dtype: together.__setitem__(d, train(d, t)))
        for device, dtype in jobs.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    barrier = threading.Barrier(1)
    alone = {device: train(device, dtype) for device, dtype in jobs.items()}
    for device in jobs:
        assert torch.equal(together[device][0], alone[device][0])
    assert patched_attributes() == attributes


# --- Observation. ---------------------------------------------------------------------------------------------------


def test_observation_names_op_dtypes_module_and_line() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Softmax(-1)))
    with emulate("cuda"), observe(modules=model, lines=True) as calls, low():
        torch.mm(model(torch.ones(1, 2)), torch.ones(2, 2))
    by_op = {call.op: call for call in calls}
    assert by_op["aten::linear"].input_dtypes == (torch.float16,) * 3
    assert by_op["aten::linear"].output_dtypes == (torch.float16,)
    assert by_op["aten::linear"].module == "0"
    assert by_op["aten::softmax.int"].module == "1.0"
    assert by_op["aten::softmax.int"].output_dtypes == (torch.float32,)
    assert by_op["aten::mm"].module is None
    assert by_op["aten::mm"].where is not None
    assert "test_region.py:" in by_op["aten::mm"].where
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks


def test_observation_is_off_when_nobody_asks_and_sees_all_when_somebody_does() -> None:
    x = torch.ones(2, 2)
    with emulate("cuda"), low():
        with observe() as calls:
            torch.relu(x)
            x + x
            torch.nn.functional.relu(x)
        seen = [call.op for call in calls]
        torch.relu(x)
        assert [call.op for call in calls] == seen
    assert seen == ["aten::relu", "aten::add.Tensor", "aten::relu"]


def test_observation_of_a_real_backend_sees_leaf_ops() -> None:
    model = nn.Linear(2, 2)
    with observe(backend("cpu-bfloat16"), modules=model) as calls, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(1, 2)).sum().backward()
    ops = [call.op for call in calls]
    assert "aten::addmm" in ops
    assert "aten::linear" not in ops
    assert {call.module for call in calls if call.op == "aten::addmm"} == {""}


def test_observing_an_emulated_backend_needs_its_emulation() -> None:
    emulated = backend("emulated-cuda-float16")
    with pytest.raises(RuntimeError, match="needs its emulation to be active"), observe(emulated):
        pass
    with emulate("cuda"), observe(emulated) as calls, low():
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert calls[-1].op == "aten::mm"


def test_limits_are_sentences() -> None:
    assert len(LIMITS) >= 5
    assert all(limit.endswith(".") and limit[0].isupper() for limit in LIMITS)
