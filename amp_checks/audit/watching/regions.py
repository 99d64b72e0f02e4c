"""Autocast regions, custom autograd functions and checkpoints of a run."""

from __future__ import annotations

from typing import Any

import torch

from amp_checks.audit.places import called_by_torch
from amp_checks.audit.watching.events import (
    AutocastSwitchedOn,
    CheckpointSaved,
    FunctionApplied,
    ModelConverted,
    RegionDisabledItself,
    RegionEntered,
)
from amp_checks.audit.watching.state import RunState, around
from amp_checks.audit.watching.uses import TensorUses
from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import LOW
from amp_checks.torch_api.patching import Patches

_OPTIMIZER_KEYS = {"state", "param_groups"}
_SCALER_KEYS = {"scale", "growth_factor", "_growth_tracker"}


class RegionWatch:
    """Which regions are entered, and which functions run in them."""

    def __init__(self, state: RunState, uses: TensorUses) -> None:
        self._state = state
        self._uses = uses

    def install(self, patches: Patches) -> None:
        """See what the program calls."""
        for name, make in (("__init__", self._made), ("__enter__", self._entered), ("__exit__", self._left)):
            patches.replace(torch.autocast, name, around(make))
        patches.replace(torch, "set_autocast_enabled", around(self._switched))
        for name in ("half", "bfloat16", "to"):
            patches.replace(torch.nn.Module, name, around(self._converts))
        patches.replace(torch.autograd.Function, "apply", around(self._applied))
        patches.replace(torch, "save", around(self._saved))

    def _made(self, original: Any, region: Any, *args: Any, **kwargs: Any) -> None:
        original(region, *args, **kwargs)
        asked = kwargs.get("enabled", args[2] if len(args) > 2 else True)
        device, _, enabled, _ = private.region_settings(region)
        if asked and not enabled:
            self._state.emit(RegionDisabledItself(*self._state.here(), device=device))

    def _entered(self, original: Any, region: Any) -> Any:
        result = original(region)
        state = self._state
        device, dtype, enabled, _ = private.region_settings(region)
        in_backward = state.backward_depth > 0
        entered = RegionEntered(*state.here(), device, dtype, enabled, in_backward, state.function)
        state.emit(entered)
        state.regions.append(entered)
        state.nest_depth += 1
        return result

    def _left(self, original: Any, region: Any, *args: Any) -> Any:
        state = self._state
        if state.regions:
            state.regions.pop()
        state.nest_depth = max(state.nest_depth - 1, 0)
        if not state.nest_depth:
            self._uses.leave_nest()
        return original(region, *args)

    def _switched(self, original: Any, *args: Any) -> Any:
        result = original(*args)
        device, enabled = args if len(args) == 2 else ("cuda", args[0])
        if enabled and not called_by_torch():
            self._state.emit(AutocastSwitchedOn(*self._state.here(), str(device)))
        return result

    def _converts(self, original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = self._state
        own = {id(one): name for name, one in state.training.named_parameters().items()} if state.step >= 0 else {}
        before = {name: one.dtype for one in module.parameters() if (name := own.get(id(one))) is not None}
        result = original(module, *args, **kwargs)
        now = {own[id(one)]: one.dtype for one in module.parameters() if id(one) in own} if before else {}
        for name, dtype in now.items():
            if dtype in LOW and before.get(name) is torch.float32:
                state.emit_once(ModelConverted, dtype, name)
                break
        return result

    def _applied(self, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return original(cls, *args, **kwargs)
        state, region = self._state, self._state.enabled_region
        dtype = region.dtype if region is not None else None
        state.emit(FunctionApplied(*state.here(), cls.__name__, dtype, decorated=_is_decorated(cls)))
        state.functions.append(cls.__name__)
        try:
            return original(cls, *args, **kwargs)
        finally:
            state.functions.pop()

    def _saved(self, original: Any, what: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer, scaler = (_holds(what, keys) for keys in (_OPTIMIZER_KEYS, _SCALER_KEYS))
        self._state.emit(CheckpointSaved(*self._state.here(), optimizer, scaler))
        return original(what, *args, **kwargs)


def _holds(what: Any, keys: set[str]) -> bool:
    """Whether nested containers hold a mapping with these keys."""
    if isinstance(what, dict):
        return keys <= set(map(str, what)) or any(_holds(value, keys) for value in what.values())
    return isinstance(what, list | tuple) and any(_holds(value, keys) for value in what)


def _is_decorated(function: Any) -> bool:
    """Whether ``custom_fwd`` wraps its forward, or ``custom_bwd`` its backward."""
    return any(
        getattr(getattr(method, "__code__", None), "co_filename", "").endswith("autocast_mode.py")
        for method in (function.forward, function.backward)
    )
