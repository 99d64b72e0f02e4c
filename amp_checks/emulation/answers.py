"""What programs ask of the CUDA runtime, answered as one idle GPU would: the one place to add an answer.

Programs ask whether there is a device, and go to the CPU where there is none; they synchronise, read memory figures,
make streams, pin memory. None of that changes a number, so inside `emulate` it is answered. `answered` lists what was.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from amp_checks.core import NotEmulated
from amp_checks.emulation import pretend
from amp_checks.emulation.streams import EmulatedEvent, EmulatedStream, on_stream

Give = Callable[..., Any]
"""``give(original, *args, **kwargs)``, the original being what torch has under that name."""
NAME = "Emulated CUDA device"
CAPABILITY = (8, 0)
"""The first with bfloat16 of its own, and with TF32."""
MEMORY = 80 * 2**30
"""Bytes, all of them free."""

answered: collections.Counter[str] = collections.Counter()
"""``torch.cuda.is_available: True``, as reports list it -> how often a program asked, in this process."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Attribute ``name`` of ``owner`` is answered inside a region for CUDA.

    Attributes:
        how: what is answered, in a few words, as reports list it.
        give: gives the answer.
        kinds: of a class, what else ``isinstance`` takes for one of it.
        only_users: torch's own callers get the original.
    """

    owner: Any
    name: str
    how: str
    give: Give
    kinds: tuple[type, ...] = ()
    only_users: bool = False

    @property
    def title(self) -> str:
        owner = getattr(self.owner, "__name__", "torch")
        module = getattr(self.owner, "__module__", None)
        return f"{module}.{owner}.{self.name}" if isinstance(self.owner, type) else f"{owner}.{self.name}"

    def note(self, caller: str) -> None:
        """A program asked, unless it was torch itself."""
        if caller.partition(".")[0] not in ("torch", "amp_checks"):
            answered[f"{self.title}: {self.how}"] += 1


def always(value: Any) -> Give:
    """That value, whatever it is asked with."""
    return lambda original, *args, **kwargs: value  # noqa: ARG005 - the signature of the others


def only_the_first(value: Any) -> Give:
    """That value, of the one device there is.

    Raises:
        NotEmulated: another device is named.
    """

    def give(original: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        del original, args, kwargs
        if device is not None:
            _is_first(device)
        return value() if callable(value) else value

    return give


def _is_first(device: Any) -> None:
    if isinstance(device, int) and device < 0:  # torch's own way to say: leave it
        return
    pretend.translate(getattr(device, "device", device), "cuda")


class _Properties(types.SimpleNamespace):
    """As ``torch.cuda.get_device_properties`` gives them."""


def _properties() -> _Properties:
    return _Properties(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=MEMORY,
        multi_processor_count=108,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 * 2**10,
        shared_memory_per_multiprocessor=164 * 2**10,
        L2_cache_size=40 * 2**20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="00000000-0000-0000-0000-000000000000",
    )


def _nothing(original: Any, *args: Any, **kwargs: Any) -> None:
    del original, args, kwargs


def _nullcontext(original: Any, *args: Any, **kwargs: Any) -> Any:
    del original, kwargs
    for device in args[:1]:
        if device is not None and not isinstance(device, Tensor):
            _is_first(device)
    return _OnDevice()


class _OnDevice(contextlib.ContextDecorator):
    """``with torch.cuda.device(0):``: it is the current one already."""

    idx, prev_idx = 0, 0

    def __enter__(self) -> None:
        """Nothing changes."""

    def __exit__(self, *_: object) -> None:
        """Nothing has changed."""


def _generator(original: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
    return original(pretend.translate(device, "cuda"), *args, **kwargs)


def _stream(original: Any, *args: Any, **kwargs: Any) -> EmulatedStream:
    del original
    return EmulatedStream(*args, **kwargs)


def _event(original: Any, *args: Any, **kwargs: Any) -> EmulatedEvent:
    del original
    return EmulatedEvent(*args, **kwargs)


def _seed(original: Any, seed: int) -> None:
    del original
    torch.default_generator.manual_seed(int(seed))


def _set_state(original: Any, state: Any, device: Any = "cuda") -> None:
    del original
    _is_first(device)
    torch.set_rng_state(state)


def _set_states(original: Any, states: Any) -> None:
    del original
    torch.set_rng_state(next(iter(states)))


def _get_state(original: Any, device: Any = "cuda") -> Tensor:
    del original
    _is_first(device)
    return torch.get_rng_state()


def _legacy(kind: str) -> Give:
    def give(original: Any, *args: Any, **kwargs: Any) -> Any:
        del original
        return getattr(torch, kind)(*args, **kwargs)

    return give


def _compile(original: Any, model: Any = None, **kwargs: Any) -> Any:
    """Wrapped as ever, and run eager: a compiled graph would miss the device's rules."""
    if model is None:
        return lambda function: _compile(original, function, **kwargs)
    UNCOMPILED.start()
    kept = {key: value for key, value in kwargs.items() if key in ("fullgraph", "dynamic", "disable")}
    return original(model, backend="eager", **kept)


def _script(original: Any, obj: Any = None, *args: Any, **kwargs: Any) -> Any:
    del original, args, kwargs
    return obj


def _without_pinning(original: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    pins, loader_vars = loader.pin_memory, vars(loader)
    loader_vars["pin_memory"] = False
    try:
        original(iterator, loader, *args, **kwargs)
    finally:
        loader_vars["pin_memory"] = pins


def _load(original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    if map_location is None:
        map_location = _where_it_is
    elif isinstance(map_location, str | torch.device):
        map_location = pretend.translate(map_location, "cuda")
    elif isinstance(map_location, dict):
        map_location = {key: pretend.translate(value, "cuda") for key, value in map_location.items()}
    return original(f, map_location, *args, **kwargs)


def _where_it_is(storage: Any, location: str) -> Any:
    """What was saved on a device comes to the emulated one."""
    del location
    return storage


def _init_process_group(original: Any, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
    """One process alone exchanges nothing: gloo does what NCCL would."""
    if "nccl" in str(backend or "nccl"):
        backend = "gloo"
    kwargs.pop("device_id", None)
    found = original(backend, *args, **kwargs)
    if torch.distributed.get_world_size() > 1:
        torch.distributed.destroy_process_group()
        raise NotEmulated("torch.distributed with NCCL", "several processes have no device between them; write gloo")
    return found


def _rows(owner: Any, names: str, how: str, give: Give, **fields: Any) -> Iterator[Answer]:
    for name in names.split():
        if hasattr(owner, name):  # not all versions of torch have all of them
            yield Answer(owner=owner, name=name, how=how, give=give, **fields)


_SET = only_the_first(None)
_CURRENT_STREAM = only_the_first(EmulatedStream)


def _of_memory(owner: Any) -> Iterator[Answer]:
    figures = "memory_allocated memory_reserved memory_cached max_memory_allocated max_memory_reserved "
    yield from _rows(owner, figures + "max_memory_cached device_memory_used", "0 bytes", only_the_first(0))
    yield from _rows(owner, "mem_get_info get_memory_info", "all memory free", only_the_first((MEMORY, MEMORY)))
    for name in ("memory_stats", "memory_stats_as_nested_dict", "host_memory_stats"):
        yield from _rows(owner, name, "0 bytes", only_the_first(lambda: collections.defaultdict(int)))
    yield from _rows(owner, "memory_summary", "nothing to tell", only_the_first(""))
    yield from _rows(owner, "memory_snapshot", "nothing to tell", only_the_first(list))
    yield from _rows(
        owner,
        "empty_cache empty_host_cache ipc_collect reset_peak_memory_stats reset_accumulated_memory_stats "
        "reset_max_memory_allocated reset_max_memory_cached reset_peak_host_memory_stats "
        "reset_accumulated_host_memory_stats set_per_process_memory_fraction _record_memory_history",
        "nothing to do",
        _nothing,
    )


def _of_random_numbers(owner: Any) -> Iterator[Answer]:
    how = "the CPU's generator"
    yield from _rows(owner, "manual_seed manual_seed_all", how, _seed)
    yield from _rows(owner, "get_rng_state", how, _get_state)
    yield from _rows(owner, "set_rng_state", how, _set_state)
    yield from _rows(owner, "get_rng_state_all", how, lambda original: [_get_state(original)])
    yield from _rows(owner, "set_rng_state_all", how, _set_states)
    yield from _rows(owner, "seed seed_all", how, lambda original: torch.seed() and None)  # noqa: ARG005
    yield from _rows(owner, "initial_seed", how, lambda original: torch.initial_seed())  # noqa: ARG005


def _of_the_device(cuda: Any) -> Iterator[Answer]:
    yield from _rows(cuda, "is_available is_initialized is_bf16_supported is_tf32_supported", "True", always(True))
    yield from _rows(cuda, "device_count", "1", always(1))
    yield from _rows(cuda, "current_device", "0", always(0))
    yield from _rows(cuda, "init", "nothing to do", _nothing)
    yield from _rows(cuda, "set_device", "there is one", _SET)
    yield from _rows(cuda, "device device_of", "there is one", _nullcontext)
    yield from _rows(cuda, "get_device_name", repr(NAME), only_the_first(NAME))
    yield from _rows(cuda, "get_device_capability", str(CAPABILITY), only_the_first(CAPABILITY))
    yield from _rows(cuda, "get_device_properties", "of an idle device", only_the_first(_properties))
    yield from _rows(cuda, "get_arch_list", "['sm_80']", always(["sm_80"]))
    yield from _rows(cuda, "get_gencode_flags", "none", always(""))
    yield from _rows(cuda, "can_device_access_peer is_current_stream_capturing", "False", always(False))
    yield from _rows(cuda, "utilization memory_usage temperature power_draw clock_rate", "0", only_the_first(0))
    yield from _rows(cuda, "get_sync_debug_mode", "0", always(0))
    yield from _rows(cuda, "set_sync_debug_mode _sleep", "nothing to do", _nothing)


def _of_streams(cuda: Any) -> Iterator[Answer]:
    how = "ops run in order"
    yield from _rows(cuda, "synchronize", how, _SET)
    yield from _rows(cuda, "Stream", how, _stream, kinds=(EmulatedStream,))
    yield from _rows(cuda, "Event", how, _event, kinds=(EmulatedEvent,))
    yield from _rows(cuda, "current_stream default_stream", how, _CURRENT_STREAM)
    yield from _rows(cuda, "set_stream", how, _nothing)
    yield from _rows(Tensor, "record_stream", how, _nothing)
    yield from _rows(cuda, "stream StreamContext", how, lambda original, stream: on_stream(stream))  # noqa: ARG005


def _of_accelerators(accelerator: Any) -> Iterator[Answer]:
    yield from _rows(accelerator, "is_available", "True", always(True))
    yield from _rows(accelerator, "device_count", "1", always(1))
    yield from _rows(accelerator, "current_device_index current_device_idx", "0", always(0))
    yield from _rows(accelerator, "set_device_index set_device_idx synchronize", "there is one", _SET)
    yield from _rows(accelerator, "set_stream", "ops run in order", _nothing)
    yield from _rows(accelerator, "current_stream", "ops run in order", _CURRENT_STREAM)
    yield from _rows(accelerator, "current_accelerator", "cuda", always(torch.device("cuda")))
    yield from _rows(accelerator, "get_device_capability", str(CAPABILITY), only_the_first(CAPABILITY))
    yield from _of_memory(accelerator)
    yield from _rows(torch, "Stream", "ops run in order", _stream, kinds=(EmulatedStream,))
    yield from _rows(torch, "Event", "ops run in order", _event, kinds=(EmulatedEvent,))


def _of_code() -> Iterator[Answer]:
    yield from _rows(torch, "compile", "runs uncompiled", _compile)
    yield from _rows(torch.jit, "script trace trace_module", "runs as Python", _script, only_users=True)
    yield from _rows(torch.jit, "freeze optimize_for_inference", "runs as Python", _script, only_users=True)


def _of_the_rest() -> Iterator[Answer]:
    yield from _rows(torch, "Generator", "the CPU's generator", _generator, kinds=())
    for kind in "Float Double Half BFloat16 Byte Char Short Int Long Bool".split():
        yield from _rows(torch.cuda, f"{kind}Tensor", "a tensor", _legacy(f"{kind}Tensor"))
    names = "range_push range_pop range_start range_end mark"
    yield from _rows(torch.cuda.nvtx, names, "nothing to do", always(0))
    yield from _rows(torch.cuda.nvtx, "range", "nothing to do", always(contextlib.nullcontext()))
    yield from _rows(torch.cuda.profiler, "start stop", "nothing to do", always(0))
    loader = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001 - where pinning is decided
    yield from _rows(loader, "__init__", "memory is not pinned", _without_pinning)
    yield from _rows(torch, "load", "to the emulated device", _load)
    if torch.distributed.is_available():
        yield from _rows(torch.distributed, "init_process_group", "one process, with gloo", _init_process_group)
        yield from _rows(torch.distributed, "is_nccl_available", "True", always(True))


def table() -> Iterator[Answer]:
    """All answers. What is kept under two names has a row for each."""
    cuda = torch.cuda
    yield from _of_the_device(cuda)
    yield from _of_streams(cuda)
    for owner in (cuda, cuda.memory):
        yield from _of_memory(owner)
    for owner in (cuda, cuda.random):
        yield from _of_random_numbers(owner)
    yield from _of_accelerators(torch.accelerator)
    yield from _of_code()
    yield from _of_the_rest()


def caller() -> str:
    """The module that called the function that asks."""
    return str(sys._getframe(2).f_globals.get("__name__", ""))


class Uncompiled:
    """Compiled functions run uncompiled, from the start to the end of the last region of the process."""

    def __init__(self) -> None:
        self._stance = contextlib.ExitStack()
        self._is_on = False

    def start(self) -> None:
        """From here on. Imports the compiler, which takes seconds."""
        if not self._is_on:
            self._is_on = True
            self._stance.push(torch.compiler.set_stance("force_eager"))

    def stop(self) -> None:
        """As it was before."""
        self._is_on = False
        self._stance.close()


UNCOMPILED = Uncompiled()
