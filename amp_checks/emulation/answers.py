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
from amp_checks.emulation import pretend, processes, storages, streams
from amp_checks.emulation.figures import CAPABILITY, MEMORY, NAME, nested_stats, properties
from amp_checks.emulation.streams import EmulatedEvent, EmulatedStream
from amp_checks.emulation.switches import CUDNN_VERSION
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import is_trampoline

Give = Callable[..., Any]
"""``give(original, *args, **kwargs)``, the original being what torch has under that name."""
_STATE_OF_A_DEVICE = 16
"""Bytes of the random state that a real device saves."""
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
        counts: whether a call with these arguments is listed, whoever calls; None: whoever is not torch is listed.
        shown: the name in reports, where it is not the owner's and the attribute's.
    """

    owner: Any
    name: str
    how: str
    give: Give
    kinds: tuple[type, ...] = ()
    only_users: bool = False
    counts: Callable[..., bool] | None = None
    shown: str = ""

    @property
    def title(self) -> str:
        if self.shown:
            return self.shown
        owner = getattr(self.owner, "__name__", "torch")
        module = getattr(self.owner, "__module__", None)
        return f"{module}.{owner}.{self.name}" if isinstance(self.owner, type) else f"{owner}.{self.name}"

    def note(self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A program asked, unless it was torch itself."""
        if self.counts(*args, **kwargs) if self.counts else caller.partition(".")[0] not in ("torch", "amp_checks"):
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


class _EmulatedGenerator(torch.Generator):
    """Draws the CPU's numbers, and names the emulated device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def _generator(original: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
    host = pretend.translate(device, "cuda")
    return original(device, *args, **kwargs) if host is device else _EmulatedGenerator(host)


def _new(kind: type, made: type) -> Give:
    """``__new__`` of ``kind``: also for who imported the class before the region."""

    def give(original: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        del original
        if cls is not kind:
            name = f"torch.cuda.{kind.__name__}"
            raise NotEmulated(f"a class made from {name}", f"call {name} itself")
        return made(*args, **kwargs)

    return give


def _make(made: type) -> Give:
    """An object of ours for one of that device; torch's own for another's."""

    def give(original: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device", args[0] if args else None)
        if device is not None and pretend.translate(device, "cuda") is device:
            return original(*args, **kwargs)
        return made(*args, **kwargs)

    return give


def _seed(original: Any, seed: int) -> None:
    del original
    torch.default_generator.manual_seed(int(seed))


def _set_state(original: Any, state: Any, device: Any = "cuda") -> None:
    del original
    _is_first(device)
    _put(state)


def _put(state: Tensor) -> None:
    """What a real device saved is its seed and how many numbers it had drawn: the seed is what can be taken over."""
    if state.numel() == _STATE_OF_A_DEVICE:
        torch.default_generator.manual_seed(int(state[:8].view(torch.int64)))
    else:
        torch.set_rng_state(state)


def _set_states(original: Any, states: Any) -> None:
    del original
    _put(next(iter(states)))


def _get_state(original: Any, device: Any = "cuda") -> Tensor:
    del original
    _is_first(device)
    return torch.get_rng_state()


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


def _rows(owner: Any, names: str, how: str, give: Give, **fields: Any) -> Iterator[Answer]:
    for name in names.split():
        if hasattr(owner, name):  # not all versions of torch have all of them
            yield Answer(owner=owner, name=name, how=how, give=give, **fields)


_SET = only_the_first(None)
_CURRENT_STREAM = only_the_first(streams.current_stream)


def _of_memory(owner: Any) -> Iterator[Answer]:
    figures = "memory_allocated memory_reserved max_memory_allocated max_memory_reserved device_memory_used"
    yield from _rows(owner, figures, "0 bytes", only_the_first(0))
    yield from _rows(owner, "mem_get_info get_memory_info", "all memory free", only_the_first((MEMORY, MEMORY)))
    yield from _rows(owner, "memory_snapshot", "nothing to tell", only_the_first(list))
    yield from _rows(
        owner,
        "empty_cache empty_host_cache ipc_collect reset_peak_memory_stats reset_accumulated_memory_stats "
        "reset_max_memory_allocated reset_max_memory_cached reset_peak_host_memory_stats "
        "reset_accumulated_host_memory_stats set_per_process_memory_fraction _record_memory_history",
        "nothing to do",
        _nothing,
    )


def _of_memory_figures() -> Iterator[Answer]:
    cuda, zero = torch.cuda, "0 bytes"
    yield from _rows(cuda, "memory_stats_as_nested_dict", zero, only_the_first(nested_stats))
    yield from _rows(cuda, "memory_stats memory_summary", zero, _as_torch_does)
    yield from _rows(cuda, "host_memory_stats", zero, only_the_first(lambda: collections.defaultdict(int)))
    yield from _rows(cuda, "get_per_process_memory_fraction", "1.0", only_the_first(1.0))
    yield from _rows(cuda, "list_gpu_processes", "no processes", only_the_first("GPU:0\nno processes are running"))
    yield from _rows(torch.accelerator, "memory_stats", zero, _memory_stats)


def _memory_stats(original: Any, device: Any = None) -> Any:
    del original
    return torch.cuda.memory_stats(device)


def _as_torch_does(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's own code, on what is answered below it."""
    return original(*args, **kwargs)


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
    yield from _rows(cuda, "get_device_properties", "of an idle device", only_the_first(properties))
    yield from _rows(cuda, "get_arch_list", "['sm_80']", always(["sm_80"]))
    yield from _rows(cuda, "get_gencode_flags", "none", always(""))
    yield from _rows(cuda, "can_device_access_peer is_current_stream_capturing", "False", always(False))
    yield from _rows(cuda, "utilization memory_usage temperature power_draw clock_rate", "0", only_the_first(0))
    yield from _rows(cuda, "get_sync_debug_mode", "0", always(0))
    yield from _rows(cuda, "set_sync_debug_mode _sleep", "nothing to do", _nothing)


def _of_streams(cuda: Any) -> Iterator[Answer]:
    how = "ops run in order"
    yield from _rows(cuda, "synchronize", how, _SET)
    for kind, made in ((cuda.Stream, EmulatedStream), (cuda.Event, EmulatedEvent)):
        yield Answer(owner=kind, name="__new__", how=how, give=_new(kind, made), shown=f"torch.cuda.{kind.__name__}")
    yield from _rows(cuda, "current_stream", how, _CURRENT_STREAM)
    yield from _rows(cuda, "default_stream", how, only_the_first(streams.DEFAULT))
    yield from _rows(cuda, "set_stream", how, _set_stream)
    yield from _rows(Tensor, "record_stream", how, _nothing)
    yield from _rows(cuda, "stream StreamContext", how, lambda original, stream: streams.on_stream(stream))  # noqa: ARG005


def _set_stream(original: Any, stream: Any) -> None:
    del original
    streams.set_stream(stream)


def _of_accelerators(accelerator: Any) -> Iterator[Answer]:
    yield from _rows(accelerator, "is_available", "True", always(True))
    yield from _rows(accelerator, "device_count", "1", always(1))
    yield from _rows(accelerator, "current_device_index current_device_idx", "0", always(0))
    yield from _rows(accelerator, "set_device_index set_device_idx synchronize", "there is one", _SET)
    yield from _rows(accelerator, "set_stream", "ops run in order", _set_stream)
    yield from _rows(accelerator, "device_index", "there is one", _nullcontext)
    yield from _rows(torch, "get_device_module", "torch.cuda", _device_module)
    yield from _rows(accelerator, "current_stream", "ops run in order", _CURRENT_STREAM)
    yield from _rows(accelerator, "current_accelerator", "cuda", always(torch.device("cuda")))
    yield from _rows(accelerator, "get_device_capability", str(CAPABILITY), only_the_first(CAPABILITY))
    yield from _of_memory(accelerator)
    yield from _rows(torch, "Stream", "ops run in order", _make(EmulatedStream), kinds=(EmulatedStream,))
    yield from _rows(torch, "Event", "ops run in order", _make(EmulatedEvent), kinds=(EmulatedEvent,))


def _device_module(original: Any, device: Any = None) -> Any:
    return original("cuda" if device is None else device)


def _of_code() -> Iterator[Answer]:
    yield from _rows(torch, "compile", "runs uncompiled", _compile, counts=lambda *args, **kwargs: True)  # noqa: ARG005
    names = "script trace trace_module freeze optimize_for_inference"
    yield from _rows(torch.jit, names, "runs as Python", _script, only_users=True)
    yield Answer(
        owner=private.ScriptFunction,
        name="__call__",
        how="runs as Python",
        give=_run_scripted,
        only_users=True,
        shown="a function scripted before",
    )


def _run_scripted(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """What was scripted before the region runs as the Python function that it was made from."""
    python = private.scripted_from(function)
    return original(function, *args, **kwargs) if python is None else python(*args, **kwargs)


def _scatter(original: Any, parallel: Any, inputs: Any, kwargs: Any, devices: Any) -> Any:
    del original, parallel, devices
    return (inputs,), (kwargs or {},)


def _of_tensors() -> Iterator[Answer]:
    for name, dtype in storages.LEGACY.items():
        kinds: Any = (storages.OfDtype(dtype),)
        yield from _rows(torch.cuda, name, "a tensor", storages.make_legacy(name), kinds=kinds)
    yield from _rows(torch, "set_default_tensor_type", "the device's types", storages.set_default_tensor_type)
    yield from _rows(torch, "load", "to the emulated device", storages.load)
    for kind in (torch.storage._StorageBase, torch.storage.TypedStorage):  # noqa: SLF001 - where methods are kept
        yield from _rows(kind, "to", "is there", storages.sent_storage)
    iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001 - where pinning is decided
    pinning, shown = "copies, not pinned", "DataLoader(pin_memory=True)"
    yield from _rows(iterator, "__init__", pinning, storages.start_loading, counts=storages.pins, shown=shown)
    yield from _rows(iterator, "__next__", pinning, storages.next_batch, counts=always_false, shown=shown)


def always_false(*args: Any, **kwargs: Any) -> bool:
    """Not listed: something else about it is."""
    del args, kwargs
    return False


def _of_the_rest() -> Iterator[Answer]:
    yield from _rows(torch, "Generator", "the CPU's generator", _generator)
    names = "range_push range_pop range_start range_end mark"
    yield from _rows(torch.cuda.nvtx, names, "nothing to do", always(0))
    yield from _rows(torch.cuda.nvtx, "range", "nothing to do", lambda *_, **__: contextlib.nullcontext())
    yield from _rows(torch.cuda.profiler, "profile", "nothing to do", lambda *_, **__: contextlib.nullcontext())
    yield from _rows(torch.autograd.profiler, "emit_nvtx", "nothing to do", lambda *_, **__: contextlib.nullcontext())
    yield from _rows(torch.cuda.profiler, "start stop", "nothing to do", always(0))
    yield from _rows(torch.backends.cuda, "is_built", "True", always(True), only_users=True)
    cudnn = getattr(torch.backends.cudnn, "m", torch.backends.cudnn)  # the module behind the one with switches
    yield from _rows(cudnn, "is_available", "True", always(True), only_users=True)  # torch would ask cuDNN itself
    yield from _rows(cudnn, "version", str(CUDNN_VERSION), always(CUDNN_VERSION))
    yield from _rows(cudnn, "is_acceptable", "False", always(False))  # its kernels are not here
    yield from _rows(torch.nn.DataParallel, "scatter", "one device", _scatter)
    yield from _rows(torch.multiprocessing, "spawn", "runs in this process", processes.spawn)
    if torch.distributed.is_available():
        yield from _rows(
            torch.distributed, "init_process_group", "one process, with gloo", processes.init_process_group
        )
        yield from _rows(torch.distributed, "is_nccl_available", "True", always(True))


def table() -> Iterator[Answer]:
    """All answers. A function that is kept under two names needs one row."""
    cuda = torch.cuda
    yield from _of_the_device(cuda)
    yield from _of_streams(cuda)
    yield from _of_memory(cuda)
    yield from _of_memory_figures()
    yield from _of_random_numbers(cuda)
    yield from _of_accelerators(torch.accelerator)
    yield from _of_code()
    yield from _of_tensors()
    yield from _of_the_rest()


def caller() -> str:
    """The module that called the function that asks; past what wraps it (the compiler wraps ``torch.jit.trace``)."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (is_trampoline(frame.f_code) or _module(frame) == "torch._dynamo.eval_frame"):
        frame = frame.f_back
    return _module(frame)


def _module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


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
