"""What the emulated device answers: each row of the table by what a program does with it."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from amp_checks.core import NotEmulated
from amp_checks.emulation import answers, emulate
from amp_checks.emulation.streams import EmulatedEvent, EmulatedStream

CUDA = torch.cuda


@pytest.fixture
def inside() -> Iterator[None]:
    torch.manual_seed(0)
    answers.answered.clear()
    with emulate("cuda"):
        yield


def _of_one_device(call: Callable[..., Any], expected: Any) -> Callable[[], bool]:
    return lambda: all(call(*device) == expected for device in ((), (0,), ("cuda",), (torch.device("cuda:0"),)))


def _timed() -> bool:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record(torch.cuda.current_stream())
    torch.cuda.synchronize()
    return bool(start.elapsed_time(end) >= 0.0 and end.query() and isinstance(end, torch.cuda.Event))


def _streams() -> bool:
    stream = torch.cuda.Stream(priority=-1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.cuda.stream(None):
        x = torch.ones(2, device="cuda") * 2
    x.record_stream(stream)
    stream.record_event().synchronize()
    return isinstance(stream, torch.cuda.Stream) and not isinstance(1, torch.cuda.Stream) and bool(x.sum() == 4)


def _repeats_with(get: Callable[[], Any], put: Callable[[Any], None]) -> Callable[[], bool]:
    def repeats() -> bool:
        state = get()
        first = torch.rand(3, device="cuda")
        put(state)
        return torch.equal(first, torch.rand(3, device="cuda"))

    return repeats


def _seeded(seed: Callable[[int], object]) -> Callable[[], bool]:
    def repeats() -> bool:
        seed(7)
        first = torch.rand(3, device="cuda")
        seed(7)
        return torch.equal(first, torch.rand(3, device="cuda"))

    return repeats


def _drawn_by_generator() -> bool:
    drawn = [torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(3)) for _ in range(2)]
    return torch.equal(*drawn) and isinstance(torch.Generator(device="cuda:0"), torch.Generator)


def _loaded(location: Any) -> Callable[[], bool]:
    def loads() -> bool:
        file = io.BytesIO()
        torch.save({"w": torch.ones(2)}, file)
        file.seek(0)
        return bool(torch.load(file, map_location=location)["w"].device == torch.device("cuda", 0))

    return loads


def _compiled() -> bool:
    module = nn.Linear(2, 2)

    @torch.compile(mode="max-autotune")
    def twice(x: torch.Tensor) -> Any:
        return module(module(x))

    module.compile()
    with torch.autocast("cuda", dtype=torch.float16):
        whole: Any = torch.compile(module)
        same = whole(torch.ones(1, 2)).dtype is torch.float16
        return same and twice(torch.ones(1, 2)).dtype is torch.float16 and set(whole.state_dict()) != set()


def _scripted() -> bool:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with torch.autocast("cuda", dtype=torch.float16):
        scripted = torch.jit.script(double)(torch.ones(2, 2)).dtype is torch.float16
        return scripted and torch.jit.trace(double, torch.ones(2, 2))(torch.ones(2, 2)).dtype is torch.float16


def _pinned() -> bool:
    loader = DataLoader(TensorDataset(torch.ones(2, 2)), batch_size=2, pin_memory=True)
    batch = next(iter(loader))[0].to("cuda", non_blocking=True)
    one = torch.ones(2, pin_memory=True).pin_memory()
    return batch.shape == (2, 2) and one.shape == (2,) and loader.pin_memory


def _legacy() -> bool:
    half = torch.ones(2).type("torch.cuda.HalfTensor")
    return half.dtype is torch.float16 and vars(torch.cuda)["FloatTensor"]([1.0]).dtype is torch.float32


def _fused() -> bool:
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.AdamW([weight], fused=True)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return bool((weight < 1).all())


def _emptied() -> bool:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.accelerator.synchronize()
    return True


def _on_devices() -> bool:
    with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1)), torch.cuda.device("cuda:0"):
        torch.cuda.set_device("cuda:0")
        torch.cuda.set_device(torch.device("cuda"))
        return torch.cuda.current_device() == 0


CONDUCT: dict[str, Callable[[], object]] = {
    "is_available": lambda: torch.cuda.is_available() and torch.cuda.is_initialized(),
    "device_count": lambda: torch.cuda.device_count() == 1,
    "get_device_name": _of_one_device(lambda *a: torch.cuda.get_device_name(*a), answers.NAME),
    "get_device_capability": _of_one_device(lambda *a: torch.cuda.get_device_capability(*a), (8, 0)),
    "get_device_properties": lambda: torch.cuda.get_device_properties("cuda").total_memory == answers.MEMORY,
    "is_bf16_supported": lambda: torch.cuda.is_bf16_supported(),
    "get_arch_list": lambda: "sm_80" in torch.cuda.get_arch_list(),
    "mem_get_info": lambda: torch.cuda.mem_get_info() == (answers.MEMORY, answers.MEMORY),
    "memory_allocated": _of_one_device(lambda *a: torch.cuda.memory_allocated(*a), 0),
    "max_memory_allocated": _of_one_device(lambda *a: torch.cuda.max_memory_allocated(*a), 0),
    "memory_stats": lambda: torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0,
    "empty_cache": _emptied,
    "set_device": _on_devices,
    "Event": _timed,
    "Stream": _streams,
    "get_rng_state": _repeats_with(lambda: torch.cuda.get_rng_state(), lambda s: torch.cuda.set_rng_state(s)),
    "get_rng_state_all": _repeats_with(
        lambda: torch.cuda.get_rng_state_all(), lambda s: torch.cuda.set_rng_state_all(s)
    ),
    "manual_seed": _seeded(lambda seed: torch.cuda.manual_seed(seed)),
    "manual_seed_all": _seeded(lambda seed: torch.cuda.random.manual_seed_all(seed)),
    "Generator": _drawn_by_generator,
    "accelerator": lambda: (
        torch.accelerator.is_available()
        and torch.accelerator.current_accelerator() == torch.device("cuda")
        and torch.accelerator.device_count() == 1
    ),
    "load, by name": _loaded("cuda"),
    "load, by device": _loaded(torch.device("cuda:0")),
    "load, by mapping": _loaded({"cuda:1": "cuda:0"}),
    "load, by function": _loaded(lambda storage, location: storage),
    "load": _loaded(None),
    "compile": _compiled,
    "jit": _scripted,
    "pin_memory": _pinned,
    "FloatTensor": _legacy,
    "fused": _fused,
    "nvtx": lambda: torch.cuda.nvtx.range_push("forward") == 0 and torch.cuda.nvtx.range_pop() == 0,
    "default device": lambda: torch.accelerator.current_accelerator().type == torch.zeros(1).device.type,  # type: ignore[union-attr]
}


@pytest.mark.usefixtures("inside")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("what", CONDUCT)
def test_a_program_finds_one_idle_device(what: str) -> None:
    assert CONDUCT[what]()


FAILS_WITHOUT = {  # where no other row gives the same
    "is_available": "is_available",
    "device_count": "device_count",
    "get_device_properties": "get_device_properties",
    "get_arch_list": "get_arch_list",
    "mem_get_info": "mem_get_info",
    "synchronize": "Event",
    "Event": "Event",
    "Stream": "Stream",
    "current_stream": "Stream",
    "set_device": "set_device",
    "current_device": "set_device",
    "device": "set_device",
    "get_rng_state": "get_rng_state",
    "set_rng_state": "get_rng_state",
    "manual_seed": "manual_seed",
    "manual_seed_all": "manual_seed_all",
    "Generator": "Generator",
    "current_accelerator": "accelerator",
    "load": "load, by name",
    "script": "jit",
    "range_push": "nvtx",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("row", FAILS_WITHOUT)
def test_without_its_row_a_program_fails(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [answer for answer in answers.table() if answer.name != row]
    monkeypatch.setattr(answers, "table", lambda: iter(rows))
    with emulate("cuda"):
        try:
            held = CONDUCT[FAILS_WITHOUT[row]]()
        except (RuntimeError, AssertionError, AttributeError, ValueError, TypeError):
            held = False
    assert not held


@pytest.mark.parametrize("device", ["cpu", "xpu"])
def test_cuda_is_not_there_for_others(device: str) -> None:
    before = torch.cuda.is_available()
    with emulate(device):
        assert torch.cuda.is_available() == before


@pytest.mark.usefixtures("inside")
def test_what_was_answered_is_listed() -> None:
    torch.cuda.is_available()
    torch.cuda.is_available()
    torch.cuda.synchronize()
    torch.optim.Adam([nn.Parameter(torch.ones(1))])  # torch asks for itself
    assert answers.answered == {"torch.cuda.is_available: True": 2, "torch.cuda.synchronize: ops run in order": 1}
    assert pickle.loads(pickle.dumps(answers.answered)) == answers.answered


@pytest.mark.usefixtures("inside")
def test_a_second_device_is_refused() -> None:
    for call in (torch.cuda.set_device, torch.cuda.get_device_name, torch.cuda.synchronize, torch.cuda.mem_get_info):
        with pytest.raises(NotEmulated, match="one device is emulated"):
            call(1)


def test_all_is_put_back_after_an_error() -> None:
    def now() -> list[object]:
        return [vars(answer.owner).get(answer.name) for answer in answers.table()]

    before = now()

    def fails() -> None:
        with emulate("cuda"):
            assert now() != before
            torch.compile(abs)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert now() == before
    graphs: list[object] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert graphs  # compiled again


def test_events_and_streams_say_what_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="both events must be recorded"):
        EmulatedEvent().elapsed_time(EmulatedEvent())
    assert EmulatedStream() == EmulatedStream()


def test_forked_workers_load_pinned_batches() -> None:
    random.seed(0)
    with emulate("cuda"):
        loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2, pin_memory=True, num_workers=1)
        assert [tuple(batch.shape) for (batch,) in loader] == [(2, 2), (2, 2)]
