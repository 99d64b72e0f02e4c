"""Every use of torch's private API, each with its reason, typed.

What is missing in some torch raises `PrivateApiMissing`, which names the torch version: private names may go in any
release. Importing this module imports torch.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch


class PrivateApiMissing(RuntimeError):
    """The installed torch lacks a private function that amp_checks stands on."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"torch {torch.__version__} has no {name}, which amp_checks needs {why}; "
            "use a torch version that amp_checks supports (see its README)"
        )


def _private(path: str, why: str) -> Any:
    """``torch.<path>``, or where it is missing a callable that says so when it is first called."""
    found: Any = torch
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:

            def missing(*_: object, **__: object) -> NoReturn:
                raise PrivateApiMissing(f"torch.{path}", why)

            return missing
    return found


# --- Rules: the dispatcher is the only place that knows which ops a device's autocast casts. ------------------------

_AUTOCAST_KEYS = {
    "cpu": "AutocastCPU",
    "cuda": "AutocastCUDA",
    "xpu": "AutocastXPU",
    "mps": "AutocastMPS",
    "mtia": "AutocastMTIA",
    "maia": "AutocastMAIA",
}

_registrations: Callable[[str], list[str]] = _private(
    "_C._dispatch_get_registrations_for_dispatch_key", "to read the autocast rules"
)
_is_fallthrough: Callable[[str, str], bool] = _private(
    "_C._dispatch_kernel_for_dispatch_key_is_fallthrough", "to see removed autocast rules"
)
_has_kernel: Callable[[str, str], bool] = _private(
    "_C._dispatch_has_kernel_for_dispatch_key", "to tell composite ops from others"
)


def autocast_key(device_type: str) -> str:
    """Name of the dispatch key that holds a device type's autocast rules; `KeyError` where it has none."""
    return _AUTOCAST_KEYS[device_type]


def autocast_rules(device_type: str) -> frozenset[str]:
    """Names (``aten::mm``) of the ops with an autocast rule, at this moment. A fallthrough is no rule."""
    key = autocast_key(device_type)
    return frozenset(name for name in _registrations(key) if not _is_fallthrough(name, key))


def has_kernel(op: str, key: str) -> bool:
    """Whether the op has a kernel of its own under that key; False for an op the dispatcher does not know."""
    try:
        return _has_kernel(op, key)
    except RuntimeError:  # "could not find schema": ops made by Python alone
        return False


@functools.cache
def is_composite_implicit(op: str) -> bool:
    """Whether the dispatcher would decompose the op into others (and autograd would differentiate those)."""
    return has_kernel(op, "CompositeImplicitAutograd")


# --- Key sets: the emulation keeps autograd on the inner tensors, so it must choose which keys run outside. ---------

KeySet = Any
"""``torch._C.DispatchKeySet``."""

include_set: Callable[[], KeySet] = _private("_C._dispatch_tls_local_include_set", "to emulate a device")
exclude_set: Callable[[], KeySet] = _private("_C._dispatch_tls_local_exclude_set", "to emulate a device")
force_keys: Callable[[KeySet, KeySet], AbstractContextManager[None]] = _private(
    "_C._ForceDispatchKeyGuard", "to emulate a device"
)
_below_autograd: Callable[[], AbstractContextManager[None]] = _private(
    "_C._AutoDispatchBelowAutograd", "to emulate a device"
)
_composite_implicit: Any = _private("_C.DispatchKey.CompositeImplicitAutograd", "to decompose composite ops")


_parse_key: Callable[[str], Any] = _private("_C._dispatch_key_parse", "to name dispatch keys")


def has_key(keys: KeySet, name: str) -> bool:
    """Whether the set holds the dispatch key of that name."""
    return bool(keys.has(_parse_key(name)))


def one_key(name: str) -> KeySet:
    """The set of the dispatch key of that name, also of one that is no attribute of ``DispatchKey``."""
    return torch._C.DispatchKeySet(_parse_key(name))


def autograd_key_set() -> KeySet:
    """All keys at which autograd records, and the one that counts versions of in-place changes."""
    before = exclude_set()
    with _below_autograd():
        autograd = exclude_set() - before
    return autograd | one_key("ADInplaceOrView")


def functorch_key_set() -> KeySet:
    """The keys at which ``torch.func`` transforms enter."""
    return one_key("FuncTorchDynamicLayerFrontMode") | one_key("FuncTorchDynamicLayerBackMode")


def decompose(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a composite op's C++ kernel: ``OpOverload.decompose`` would prefer a Python decomposition."""
    return op._op_dk(_composite_implicit, *args, **kwargs)


_find_schema: Callable[[str, str], Any] = _private("_C._dispatch_find_schema_or_throw", "to run custom ops")
_call_boxed: Callable[..., Any] = _private("_C._dispatch_call_boxed", "to run custom ops")


def call_below_function_modes(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an op without asking the function modes first, so that one may stay on for the op's own Python body."""
    return _call_boxed(_find_schema(op._schema.name, op._schema.overload_name), *args, **kwargs)


def run_kernel(op: Any, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the op's kernel of that dispatch key, whatever its tensors' keys are."""
    return op._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)


# --- What autograd saves: the emulation replaces a widened tensor by its low-precision original. --------------------

push_saved_tensors_hooks: Callable[[Callable[..., Any], Callable[..., Any]], None] = _private(
    "_C._autograd._push_saved_tensors_default_hooks", "to save low-precision tensors for backward"
)
pop_saved_tensors_hooks: Callable[[], None] = _private(
    "_C._autograd._pop_saved_tensors_default_hooks", "to save low-precision tensors for backward"
)
_top_hooks: Callable[[bool], Any] = _private(
    "_C._autograd._top_saved_tensors_default_hooks", "to respect the user's hooks on saved tensors"
)
_hooks_enabled: Callable[[], bool] = _private(
    "_C._autograd._saved_tensors_hooks_is_enabled", "to respect who forbids hooks on saved tensors"
)
transforms_active: Callable[[], bool] = _private(
    "_C._are_functorch_transforms_active", "to leave torch.func transforms alone"
)


def top_saved_tensors_hooks() -> Any:
    """The pair of hooks that the user has in force, or None."""
    return _top_hooks(False)


def saved_tensors_hooks_allowed() -> bool:
    """Whether autograd would take hooks now: a transform of ``torch.func``, or the user, may forbid them."""
    return _hooks_enabled() and not transforms_active()


def checkpoint_metadata_checks() -> dict[str, Callable[[torch.Tensor], Any]]:
    """By name, what `torch.utils.checkpoint` compares of a tensor that it saved and of the one that it recomputed."""
    from torch.utils import checkpoint

    return checkpoint._allowed_determinism_checks_to_fns


# --- Functions of autograd: two that stand for one op must cost little more than one op. ----------------------------

no_torch_function: Callable[[], AbstractContextManager[None]] = _private(
    "_C.DisableTorchFunction", "to keep function modes out of the suite's own calls"
)
no_function_modes = no_torch_function


def apply_function(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply``, without its binding of default arguments where no transform of ``torch.func`` is active."""
    if transforms_active():
        return function.apply(*args)
    return super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc]


# --- Modes and wrappers. --------------------------------------------------------------------------------------------

push_dispatch_mode: Callable[[Any], None] = _private("_C._push_on_torch_dispatch_stack", "to emulate a device")
pop_dispatch_mode: Callable[[Any], Any] = _private("_C._pop_torch_dispatch_stack", "to emulate a device")
push_function_mode: Callable[[Any], None] = _private("_C._push_on_torch_function_stack", "to emulate a device")
pop_function_mode: Callable[[], Any] = _private("_C._pop_torch_function_stack", "to emulate a device")
function_modes: Callable[[], int] = _private("_C._len_torch_function_stack", "to emulate a device")
"""How many function modes are on in this thread."""
disabled_torch_function: Any = _private("_C._disabled_torch_function_impl", "to emulate a device")
make_wrapper: Callable[..., Any] = _private("Tensor._make_wrapper_subclass", "to emulate a device")
OpOverload: Any = _private("_ops.OpOverload", "to recognise ops")
OpOverloadPacket: Any = _private("_ops.OpOverloadPacket", "to recognise ops")
ScriptFunction: type = _private("_C.ScriptFunction", "to refuse TorchScript")
ScriptMethod: type = _private("_C.ScriptMethod", "to refuse TorchScript")


def scripted_from(function: Any) -> Callable[..., Any] | None:
    """The Python function that a scripted function was made from, or None where torch has not kept it (traces)."""
    found: Callable[..., Any] | None = getattr(function, "_torchdynamo_inline", None)
    return found


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd tracks the tensor as a view: autocast never caches the cast of one."""
    return tensor._is_view()


CUDNN_RNN: Any = _private("ops.aten._cudnn_rnn.default", "to emulate cuDNN's RNN layers")
"""cuDNN's entry point for whole RNN layers."""

set_grad_enabled: Any = _private("_C._set_grad_enabled", "to let it pass the function mode")


def set_cudnn_enabled(enabled: bool) -> bool:
    """Set the flag behind ``torch.backends.cudnn.enabled`` (which may be frozen); return what it was."""
    before: bool = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(enabled)
    return before


def cudnn_switch() -> tuple[Any, str, str]:
    """Owner and names of what reads and what writes that flag for ``torch.backends.cudnn.flags``."""
    return torch._C, "_get_cudnn_enabled", "_set_cudnn_enabled"


# --- Kernels of one op: planted faults replace them, the op-entry probe stands among them. --------------------------

_include_keys: Callable[[Any], AbstractContextManager[None]] = _private(
    "_C._IncludeDispatchKeyGuard", "to see an op at its entry below autocast"
)
_exclude_keys: Callable[[KeySet], AbstractContextManager[None]] = _private(
    "_C._ExcludeDispatchKeyGuard", "to run an op below autocast"
)


def including(key: str) -> AbstractContextManager[None]:
    """A region in which every op also runs its kernel at ``key``."""
    return _include_keys(_parse_key(key))


def excluding(key: str) -> AbstractContextManager[None]:
    """A region in which no op runs its kernel at ``key``."""
    return _exclude_keys(one_key(key))


@contextmanager
def kernel(op: str, key: str, function: Callable[..., Any] | None, *, with_keys: bool = False) -> Iterator[None]:
    """The kernel of an op (``softmax.int``) at a dispatch key, replaced inside; None: a fallthrough, as if it had none.

    ``with_keys``: the function takes the call's dispatch keys first, as `kernel_of` wants them.
    The kernel that was there is back on exit: `torch.library` keeps overridden kernels below the new one.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():  # torch tells once per process that a kernel is overridden: here that is meant
            warnings.simplefilter("ignore", UserWarning)
            replacement = torch.library.fallthrough_kernel if function is None else function
            library.impl(op, replacement, key, with_keyset=with_keys)
        yield
    finally:
        library._destroy()


def kernel_of(op: str, key: str) -> Callable[..., Any]:
    """The kernel that the op runs at a dispatch key now, to be called with the set of keys and the op's arguments."""
    found: Callable[..., Any] = torch.library.get_kernel(f"aten::{op}", key).call_boxed
    return found


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor was changed in place: autograd's own counter."""
    return int(tensor._version)


def argument_names(op: Any) -> tuple[str, ...]:
    """The names of an overload's arguments, in order, from its schema."""
    return tuple(argument.name for argument in op._schema.arguments)


def argument_types(op: Any) -> tuple[str, ...]:
    """The types of an overload's arguments, in order, as its schema writes them."""
    return tuple(str(argument.type) for argument in op._schema.arguments)


# --- Audit: which forward op a backward op belongs to, and what a scaler found. -------------------------------------

_latest_number: Callable[[], int] = _private("autograd._get_sequence_nr", "to name the forward op of a gradient")
running_node: Callable[[], Any] = _private("_C._current_autograd_node", "to name the forward op of a gradient")
"""The autograd node whose backward runs in this thread, or None."""


def latest_node_number() -> int:
    """The sequence number of this thread's newest autograd node: inside an op below autograd, that op's own."""
    return _latest_number() - 1


def node_number(node: Any) -> int:
    """The sequence number of an autograd node, as `latest_node_number` gave it while its forward ran."""
    return int(node._sequence_nr())


def unscaled_found_inf(scaler: Any, optimizer: Any) -> bool:
    """Whether the scaler found a non-finite gradient of this optimizer since its last update."""
    state = scaler._per_optimizer_states.get(id(optimizer), {})
    return any(bool(found.item()) for found in state.get("found_inf_per_device", {}).values())


def region_settings(region: torch.autocast) -> tuple[str, torch.dtype, bool, bool]:
    """Device type, dtype, whether enabled and whether it caches casts: what `torch.autocast` was made with."""
    return str(region.device), region.fast_dtype, bool(region._enabled), bool(region._cache_enabled)


def set_region_enabled(region: torch.autocast, enabled: bool) -> bool:
    """Enable or disable a region that was not entered yet; return what it was."""
    before = bool(region._enabled)
    region._enabled = enabled
    return before


def backward_engine() -> tuple[Any, str]:
    """Owner and name of the function that both ``backward`` and ``grad`` run the engine with."""
    return torch.autograd, "_engine_run_backward"


def custom_function_of(node: Any) -> type | None:
    """The `torch.autograd.Function` whose backward a node is, or None for one of torch's own."""
    found: type | None = getattr(type(node), "_forward_cls", None)
    return found


def is_aliasing(op: Any) -> bool:
    """Whether an overload returns a view of an argument and changes nothing."""
    returns = op._schema.returns
    return not op._schema.is_mutable and any(value.alias_info is not None for value in returns)


def is_mutating(op: Any) -> bool:
    """Whether an overload changes an argument."""
    return bool(op._schema.is_mutable)


# --- Gradient scaling: the kernels under a scaler, and what of it only optimizers and torch's own tests read. -------

check_and_unscale: Callable[[list[torch.Tensor], torch.Tensor, torch.Tensor], None] = _private(
    "_amp_foreach_non_finite_check_and_unscale_", "to test the check of gradients by itself"
)
"""Multiply gradients by ``inverse`` in place; set ``found_inf`` where one has inf or NaN: unscale_'s kernel."""
_update_scale = _private("_amp_update_scale_", "to test the update of scale and growth tracker by itself")


def update_scale(
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    """Grow or back off ``scale``, count in ``tracker``, in place; returns ``scale``. The kernel of update."""
    updated: torch.Tensor = _update_scale(scale, tracker, found_inf, growth_factor, backoff_factor, growth_interval)
    return updated


def found_inf_per_device(scaler: Any, optimizer: torch.optim.Optimizer) -> dict[torch.device, torch.Tensor]:
    """The inf flags of an optimizer, as an optimizer that is handed the scaler reads them."""
    flags: dict[torch.device, torch.Tensor] = scaler._found_inf_per_device(optimizer)
    return flags


def check_inf_per_device(scaler: Any, optimizer: torch.optim.Optimizer) -> dict[torch.device, torch.Tensor]:
    """Look for inf without unscaling, as for optimizers that scale by themselves; gives the flags."""
    flags: dict[torch.device, torch.Tensor] = scaler._check_inf_per_device(optimizer)
    return flags


def get_growth_tracker(scaler: Any) -> int:
    """The tracker of a scaler that gives no state because it is disabled."""
    return int(scaler._get_growth_tracker())


def set_growth_tracker(scaler: Any, tracker: torch.Tensor | None) -> None:
    """Tamper with a scaler, to see whether it notices."""
    scaler._growth_tracker = tracker


# --- Memory: what an op keeps of memory that nobody has written to. ---

_set_deterministic: Callable[..., None] = _private(
    "_C._set_deterministic_algorithms", "to fill new memory without the compiler, which the public function imports"
)


@contextmanager
def new_memory_is_nan() -> Iterator[None]:
    """Fill new memory with NaN inside: what is kept of it before it is written to is never right by chance."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    _set_deterministic(True, warn_only=True)
    try:
        yield
    finally:
        _set_deterministic(before, warn_only=warns)


# --- Graphs: the casts that a region records, seen on tensors that hold no data. ---


def fake_tensor_mode() -> AbstractContextManager[Any]:
    """A region in which new tensors have a device, a dtype and a shape, and no data: no device is needed."""
    mode: Callable[[], AbstractContextManager[Any]] = _private(
        "_subclasses.fake_tensor.FakeTensorMode", "to see the casts in a traced graph"
    )
    return mode()
