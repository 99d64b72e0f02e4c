"""Counts one iteration of a run: a dispatch mode for ops, a function mode for what is called, saved-tensors hooks.

The function mode tells a cast that the program asks for (``.float()``) from one that autocast makes inside a call.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.data import dataloader

from amp_checks.audit.places import Place, line, program_frame
from amp_checks.audit.probes.recorder import Recorder
from amp_checks.audit.watching.op_facts import OpFacts, tensors_of
from amp_checks.audit.watching.state import RunState, around
from amp_checks.emulation import replaces_op
from amp_checks.emulation.region import current
from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import LOW, dtype_name
from amp_checks.torch_api.patching import Patches
from amp_checks.worth.count import Count, Op
from amp_checks.worth.formulas import flops, odd_dimension

STEPS = 2
"""Iterations that are looked at: the second is counted where there is one: the first makes the optimizer's state."""

_CASTS = frozenset("to float half bfloat16 double type type_as".split())
"""Methods of a tensor with which a program casts."""


class _Calls(TorchFunctionMode):
    """Knows the outermost function of torch that the program has called."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        before, self.name = self.name, self.name or getattr(func, "__name__", "")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.name = before


class _Island:
    """What a program's cast to float32 or float64 starts; ``used``: ops computed in it, ``returned``: cast back."""

    def __init__(self, place: Place | None, module: str | None) -> None:
        self.place, self.module = place, module
        self.used = self.returned = False


_Key = tuple[Any, ...]
_Forward = tuple[str | None, Place | None, str, "_Island | None", bool, str]
"""Module, place, region, island, in a custom function, cast."""


class _Step:
    """What is known of one iteration."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seconds = self.loading = 0.0
        self.loads_at: Place | None = None
        self.ops: Counter[_Key] = Counter()
        self.saved: dict[int, tuple[torch.UntypedStorage, torch.dtype]] = {}
        self.copies: dict[int, int] = {}
        self.copy_storages: set[int] = set()
        self.reached = False
        self.islands: dict[int, _Island] = {}
        self.forward: dict[int, _Forward] = {}


class IterationCounter(Recorder[Count]):
    """Counts the first iterations, and gives the last of them that was whole."""

    def __init__(self, state: RunState, step: int) -> None:
        super().__init__(state, step)
        self._steps: dict[int, _Step] = {}
        self._calls = _Calls()
        self._stack = contextlib.ExitStack()
        self._facts: dict[Any, OpFacts] = {}
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._stepping = 0
        self._weights: dict[int, int] = {}
        self._gradients = 0
        self._device = ""
        self._is_loading = False

    def __enter__(self) -> Any:
        stack, patches = self._stack, Patches()
        stack.callback(register_optimizer_step_pre_hook(self._step_begins).remove)
        stack.callback(register_optimizer_step_post_hook(self._step_ends).remove)
        patches.replace(dataloader._BaseDataLoaderIter, "__next__", around(self._load))  # noqa: SLF001
        stack.enter_context(patches)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor))
        stack.enter_context(self._calls)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *args: object) -> Any:
        out = super().__exit__(*args)  # type: ignore[no-untyped-call]
        self._stack.close()
        return out

    def _now(self) -> _Step | None:
        """The iteration that runs, where it is one that is counted."""
        number = self._run.step
        if number >= STEPS:
            self._end(STEPS - 1)
        if not 0 <= number < STEPS or (self._run.quiet and not self._stepping):
            return None
        if number not in self._steps:
            self._end(number - 1)
            self._steps[number] = _Step()
            if current() is None:  # where a device is emulated, tensors are on the CPU
                self._device = next((one.device.type for one in self._run.training.named_parameters().values()), "")
            self._weights = {
                held.untyped_storage().data_ptr(): held.numel() * held.element_size()
                for held in (
                    *self._run.training.named_parameters().values(),
                    *self._run.training.named_buffers().values(),
                )
                if held.layout is torch.strided
            }
        return self._steps[number]

    def _end(self, number: int) -> None:
        if (before := self._steps.get(number)) is not None and not before.seconds:
            before.seconds = time.perf_counter() - before.began

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        self._stepping += 1
        if self._now() is not None:
            held = [p for one in self._optimizers.values() for group in one.param_groups for p in group["params"]]
            self._gradients = sum(_bytes(p.grad) for p in held if p.grad is not None)

    def _step_ends(self, *_: Any) -> None:
        self._stepping = max(0, self._stepping - 1)

    def _load(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        step, began = self._now(), time.perf_counter()
        self._is_loading = True
        try:
            return original(iterator)
        finally:
            self._is_loading = False
            if step is not None:
                step.loading += time.perf_counter() - began
                step.loads_at = program_frame()

    def _save(self, tensor: Tensor) -> Tensor:
        step = self._now()
        if step is not None:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # what has no storage keeps no bytes
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._weights:
                    # The storage is held, so that its address is not used again within the iteration.
                    step.saved.setdefault(storage.data_ptr(), (storage, tensor.dtype))
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        step = None if self._is_loading else self._now()
        if step is not None:
            with private.no_function_modes():
                self._count(step, func, args, out)
        return out

    def _count(self, step: _Step, func: Any, args: tuple[Any, ...], out: Any) -> None:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = OpFacts(func)
        if facts.view or facts.allocates or facts.base.startswith("profiler::"):
            return
        given, made = tensors_of(args), tensors_of((out,))
        floats = [one for one in given if one.is_floating_point()]
        outputs = [one for one in made if one.is_floating_point()]
        replaced = replaces_op()
        is_cast = _is_cast(facts, floats, outputs)
        if replaced and is_cast:
            return  # the emulation's own
        module, place, region, island, custom, cast = self._origin(step, floats, outputs, is_cast=is_cast)
        distinct = {_address(one): one for one in (*given, *made)}.values()
        wide = [one for one in distinct if one.dtype in (torch.float32, torch.float64)]
        names = tuple(
            dict.fromkeys("16" if replaced and one.dtype is torch.float32 else dtype_name(one.dtype) for one in floats)
        )
        of_weight = is_cast and bool(floats) and _address(floats[0]) in self._weights
        if of_weight and outputs and outputs[0].dtype in LOW:
            step.copies[_address(floats[0])] = _bytes(outputs[0])
            step.copy_storages.add(_address(outputs[0]))
        base = facts.base.removeprefix("aten::")
        step.ops[
            base,
            self._phase(),
            module,
            place,
            names,
            dtype_name(outputs[0].dtype) if outputs else "",
            flops(facts.base, args, out),
            sum(map(_bytes, distinct)),
            0 if replaced else sum(map(_bytes, wide)),
            odd_dimension(facts.base, args, out),
            cast,
            of_weight,
            region,
            custom,
            island,
        ] += 1

    def _phase(self) -> str:
        if self._run.backward_depth:
            return "backward"
        return "optimizer" if self._stepping else "forward"

    def _origin(self, step: _Step, floats: list[Tensor], outputs: list[Tensor], *, is_cast: bool) -> _Forward:
        """Where the op comes from: of backward, what is known of its forward."""
        run = self._run
        if run.backward_depth:
            node = private.running_node()
            number = private.node_number(node) if node is not None else -1
            if node is not None and private.custom_function_of(node) is not None:
                region = "enabled" if step.reached else "none"
                return (None, program_frame(), region, None, True, "autocast" if is_cast else "")
            found = step.forward.get(number, (None, None, "enabled" if run.enabled_region else "none", None, False, ""))
            return (*found[:5], (found[5] or "autocast") if is_cast else "")
        place, module = program_frame(), run.module
        region = self._region()
        step.reached |= region == "enabled"
        cast = "" if not is_cast else "program" if self._calls.name in _CASTS else "autocast"
        island = None if self._stepping else self._island(step, floats, outputs, cast, place, module)
        found = (module, place, region, island, run.function is not None, cast)
        if torch.is_grad_enabled() and not self._stepping:
            step.forward.setdefault(private.latest_node_number(), found)
        return found

    def _region(self) -> str:
        """``none`` also of another device than the model's, and where one is disabled, or float32, with none around."""
        mine = [one for one in self._run.regions if not self._device or one.device == self._device]
        if not any(one.enabled and one.dtype in LOW for one in mine):
            return "none"
        return "enabled" if mine[-1].enabled and mine[-1].dtype in LOW else "disabled"

    def _island(
        self,
        step: _Step,
        floats: list[Tensor],
        outputs: list[Tensor],
        cast: str,
        place: Place | None,
        module: str | None,
    ) -> _Island | None:
        """The island that the op is in: begun by a cast of the program, left by one to 16 bits."""
        island = next((found for one in floats if (found := step.islands.get(_address(one))) is not None), None)
        wide = bool(outputs) and outputs[0].dtype.itemsize >= 4
        widened = bool(cast) and wide and outputs[0].dtype.itemsize > floats[0].dtype.itemsize
        if cast == "program" and widened:
            island = _Island(place, module)
        elif island is not None and cast:
            island.returned |= not wide
        elif island is not None and self._calls.name not in BY_RULE:
            island.used = True
        leaves = island is not None and (not wide or self._calls.name in BY_RULE)
        for one in outputs:
            if island is None or leaves:
                step.islands.pop(_address(one), None)
            else:
                step.islands[_address(one)] = island
        return None if island is not None and not cast and self._calls.name in BY_RULE else island

    def result(self) -> Count:
        for number in list(self._steps):
            self._end(number)
        trace = self._run.trace
        whole = [number for number in self._steps if number < max(1, trace.steps)]
        failed = trace.failure.text if trace.failure is not None else None
        if not whole:
            return Count(failed=failed)
        step = self._steps[max(whole)]
        saved: Counter[str] = Counter()
        copied = 0
        for address, (storage, dtype) in step.saved.items():
            if address in step.copy_storages:
                copied += storage.nbytes()
            else:
                saved[dtype_name(dtype)] += storage.nbytes()
        states = [
            one for optimizer in self._optimizers.values() for held in optimizer.state.values() for one in held.values()
        ]
        return Count(
            ops=tuple((_op(key), calls) for key, calls in step.ops.items()),
            saved=dict(saved),
            saved_copies=copied,
            weight_copies=sum(step.copies.values()),
            parameters=sum(map(_bytes, self._run.training.named_parameters().values())),
            gradients=self._gradients,
            optimizer_state=sum(_bytes(one) for one in states if isinstance(one, Tensor)),
            loading=step.loading,
            loads_at=line(step.loads_at),
            seconds=step.seconds,
            tf32=torch.get_float32_matmul_precision() != "highest",
            failed=failed,
        )


BY_RULE = frozenset(
    "softmax log_softmax softmin cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div layer_norm "
    "group_norm binary_cross_entropy binary_cross_entropy_with_logits cosine_similarity exp log pow sum prod cumsum "
    "norm poisson_nll_loss gaussian_nll_loss ctc_loss triplet_margin_loss margin_ranking_loss rms_norm mean item "
    "detach".split()
)
"""Functions that autocast runs in float32 by rule, or that only read a loss: a cast before them changes nothing."""


def _op(key: _Key) -> Op:
    name, phase, module, place, names, output, count, size, wide, odd, cast, of_weight, region, custom, island = key
    inside = island is not None and (island.used or island.returned)
    return Op(
        name=name,
        phase=phase,
        module=module,
        where=line(place),
        inputs=tuple("float16" if one == "16" else one for one in names),
        output=output,
        flops=count,
        bytes=size,
        float32_bytes=wide,
        odd=odd,
        cast=cast,
        of_weight=of_weight,
        region=region,
        custom=custom,
        island=(island.module, line(island.place)) if inside else None,
        returns=inside and not island.used,
    )


def _is_cast(facts: OpFacts, floats: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether floats of one dtype go in, and the same come out in another."""
    if not floats or not outputs or facts.base not in ("aten::_to_copy", "aten::copy_"):
        return False
    return floats[-1].dtype is not outputs[0].dtype


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's values; of one that repeats them in memory, of the memory."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size() if not tensor.is_sparse else _bytes(tensor.coalesce().values())
    size = tensor.numel() * tensor.element_size()
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return min(size, tensor.untyped_storage().nbytes())
    return size
