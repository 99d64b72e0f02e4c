"""What the emulated device answers: each row of the table by what a program does with it."""

from __future__ import annotations

import io
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from amp_checks.core import NotEmulated
from amp_checks.emulation import answers, emulate, figures
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
    twice(torch.ones(1, 2))  # the compiler has started, and has wrapped torch.jit.trace
    if torch.jit.trace(module, torch.ones(1, 2)) is not module:
        return False
    with torch.autocast("cuda", dtype=torch.float16):
        whole: Any = torch.compile(module)
        same = whole(torch.ones(1, 2)).dtype is torch.float16
        return same and twice(torch.ones(1, 2)).dtype is torch.float16 and set(whole.state_dict()) != set()


def _scripted() -> bool:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with torch.autocast("cuda", dtype=torch.float16):
        scripted = torch.jit.script(double)(torch.ones(2, 2)).dtype is torch.float16
        scripted &= torch.jit.script(nn.Linear(2, 2))(torch.ones(1, 2)).dtype is torch.float16
        return scripted and torch.jit.trace(double, torch.ones(2, 2))(torch.ones(2, 2)).dtype is torch.float16


def _pinned() -> bool:
    loader = DataLoader(TensorDataset(torch.ones(2, 2)), batch_size=2, pin_memory=True)
    batch = next(iter(loader))[0].to("cuda", non_blocking=True)
    one = torch.ones(2, pin_memory=True).pin_memory()
    return batch.shape == (2, 2) and one.shape == (2,) and loader.pin_memory


def _legacy() -> bool:
    half = torch.ones(2).type("torch.cuda.HalfTensor")
    made = vars(torch.cuda)["HalfTensor"]([1.0])
    return half.dtype is made.dtype is torch.float16 and isinstance(made, vars(torch.cuda)["HalfTensor"])


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


def _squared(x: torch.Tensor) -> torch.Tensor:
    return x @ x


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is deprecated; programs have it
    scripted_before = torch.jit.script(_squared)


def _runs_scripted() -> bool:
    with torch.autocast("cuda", dtype=torch.float16):
        return bool(scripted_before(torch.ones(2, 2)).dtype is torch.float16)


def _loader(workers: int) -> Callable[[], bool]:
    def pins() -> bool:
        data = TensorDataset(torch.ones(4, 2))
        batches = [batch for (batch,) in DataLoader(data, batch_size=2, pin_memory=True, num_workers=workers)]
        return len(batches) == 2 and all(batch.is_pinned() for batch in batches) and not data.tensors[0].is_pinned()

    return pins


def _copied() -> bool:
    pageable = torch.ones(2)
    copy = pageable.pin_memory()
    copy.add_(1.0)
    again = copy.pin_memory() is copy and copy[:1].is_pinned() and torch.empty(2, pin_memory=True).is_pinned()
    return again and bool(pageable[0] == 1.0) and not pageable.is_pinned()


def _on_its_stream() -> bool:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        inside = torch.cuda.current_stream() == side
    return inside and side != torch.cuda.default_stream() == torch.cuda.current_stream()


def _untimed() -> bool:
    start, end = torch.cuda.Event(), torch.cuda.Event()
    start.record()
    end.record()
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(end)
    return True


def _seed_of_a_real_device() -> bool:
    torch.cuda.set_rng_state(torch.tensor([5, 0], dtype=torch.int64).view(torch.uint8))
    drawn = torch.rand(2, device="cuda")
    return torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(5)))


def _typed() -> bool:
    single, types = torch.ones(2, device="cuda"), vars(torch.cuda)
    named = single.type() == "torch.cuda.FloatTensor" and single.type(types["HalfTensor"]).dtype is torch.float16
    return named and isinstance(single, types["FloatTensor"]) and not isinstance(single, types["HalfTensor"])


def _typed_by_default() -> bool:
    try:
        torch.set_default_tensor_type(vars(torch.cuda)["DoubleTensor"])
        return torch.ones(1).dtype is torch.float64
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)


def _stored() -> bool:
    storage = torch.ones(2, device="cuda").untyped_storage()
    return storage.device == torch.device("cuda", 0) and storage.is_cuda and storage.cuda() is storage


def _parallel() -> bool:
    parallel = nn.DataParallel(nn.Linear(2, 2).cuda())
    return bool(parallel(torch.ones(3, 2, device="cuda")).shape == (3, 2))


def _at_index() -> bool:
    with torch.accelerator.device_index(0):
        return bool(torch.accelerator.current_device_index() == 0)


CONDUCT: dict[str, Callable[[], object]] = {
    "is_available": lambda: torch.cuda.is_available() and torch.cuda.is_initialized(),
    "device_count": lambda: torch.cuda.device_count() == 1,
    "get_device_name": _of_one_device(lambda *a: torch.cuda.get_device_name(*a), figures.NAME),
    "get_device_capability": _of_one_device(lambda *a: torch.cuda.get_device_capability(*a), (8, 0)),
    "get_device_properties": lambda: torch.cuda.get_device_properties("cuda").total_memory == figures.MEMORY,
    "is_bf16_supported": lambda: torch.cuda.is_bf16_supported(),
    "get_arch_list": lambda: "sm_80" in torch.cuda.get_arch_list(),
    "mem_get_info": lambda: torch.cuda.mem_get_info() == (figures.MEMORY, figures.MEMORY),
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
    "load, by a function that moves": _loaded(lambda storage, location: storage.cuda(0)),
    "load": _loaded(None),
    "scripted before": _runs_scripted,
    "pinned batches": _loader(0),
    "pinned batches of a worker": _loader(1),
    "pinned copies": _copied,
    "stream of a block": _on_its_stream,
    "event without times": _untimed,
    "random state of a real device": _seed_of_a_real_device,
    "tensor types": _typed,
    "default tensor type": _typed_by_default,
    "storage": _stored,
    "one device of many": _parallel,
    "device index": _at_index,
    "memory_summary": lambda: "Allocated memory" in torch.cuda.memory_summary(),
    "generator's device": lambda: torch.Generator("cuda").device == torch.device("cuda", 0),
    "get_device_module": lambda: torch.get_device_module() is torch.cuda,
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
@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
@pytest.mark.parametrize("what", CONDUCT)
def test_a_program_finds_one_idle_device(what: str) -> None:
    assert CONDUCT[what]()


FAILS_WITHOUT = {  # where no other row gives the same, on builds with CUDA and without
    "torch.cuda.is_available": "is_available",
    "torch.cuda.device_count": "device_count",
    "torch.cuda.get_device_properties": "get_device_properties",
    "torch.cuda.mem_get_info": "mem_get_info",
    "torch.cuda.memory_stats_as_nested_dict": "memory_stats",
    "torch.cuda.synchronize": "Event",
    "torch.cuda.Event": "Event",
    "torch.cuda.Stream": "Stream",
    "torch.cuda.current_stream": "Stream",
    "torch.cuda.set_device": "set_device",
    "torch.cuda.current_device": "set_device",
    "torch.cuda.device": "set_device",
    "torch.cuda.get_rng_state": "get_rng_state",
    "torch.cuda.set_rng_state": "get_rng_state",
    "torch.cuda.manual_seed": "manual_seed",
    "torch.cuda.manual_seed_all": "manual_seed_all",
    "torch.Generator": "Generator",
    "torch.accelerator.device_index": "device index",
    "torch.cuda.HalfTensor": "FloatTensor",
    "torch.set_default_tensor_type": "default tensor type",
    "torch.storage._StorageBase.to": "load, by a function that moves",
    "DataLoader(pin_memory=True)": "pinned batches of a worker",
    "torch.jit.script": "jit",
    "a function scripted before": "scripted before",
    "torch.nn.parallel.data_parallel.DataParallel.scatter": "one device of many",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("row", FAILS_WITHOUT)
def test_without_its_row_a_program_fails(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = list(answers.table())
    rows = [answer for answer in everything if answer.title != row]
    assert len(rows) < len(everything)
    monkeypatch.setattr(answers, "table", lambda: iter(rows))
    with emulate("cuda"):
        try:
            held = CONDUCT[FAILS_WITHOUT[row]]()
        except Exception:  # noqa: BLE001 - whatever torch raises where there is no device
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

    torch.compile(abs, backend="eager")(torch.ones(1))  # as it starts, the compiler itself replaces some of torch.jit
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
    with pytest.raises(ValueError, match="both events must be recorded"):
        EmulatedEvent(enable_timing=True).elapsed_time(EmulatedEvent(enable_timing=True))
    assert EmulatedStream() != EmulatedStream()
    with pytest.raises(NotEmulated, match="leave interprocess=True out"):
        EmulatedEvent().ipc_handle()


def test_forked_workers_load_pinned_batches() -> None:
    random.seed(0)
    with emulate("cuda"):
        loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2, pin_memory=True, num_workers=1)
        assert [tuple(batch.shape) for (batch,) in loader] == [(2, 2), (2, 2)]


@pytest.mark.usefixtures("inside")
def test_what_torch_asks_on_a_programs_behalf_is_listed() -> None:
    for pinned in (False, True):
        list(DataLoader(TensorDataset(torch.ones(2, 2)), pin_memory=pinned))
    nn.Linear(2, 2).compile()
    assert answers.answered == {
        "DataLoader(pin_memory=True): copies, not pinned": 1,
        "torch.compile: runs uncompiled": 1,
    }
