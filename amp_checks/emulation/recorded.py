"""Makes an emulated device refuse what the record says that it refuses, and run what it runs, where the CPU differs.

The record of low-precision support (`amp_checks.records.low_precision`) knows ops by their names in torch's database;
the dispatcher knows overloads. These tables bridge the two, for the ops on which the CPU's kernels do the opposite of
what is recorded of the device: where both refuse, the CPU's own error stands. Nothing here was verified on a GPU as
long as the record of the device is a declaration; the message of a refusal says which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from amp_checks.records import low_precision
from amp_checks.torch_api.dtypes import dtype_name

Runner = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

REFUSED: dict[str, str] = {
    "angle": "angle",
    "cdist": "cdist",
    "histc": "histc",
    "igamma": "igamma",
    "igamma_": "igamma",
    "igammac": "igammac",
    "igammac_": "igammac",
    "lu_unpack": "lu_unpack",
}
"""Ops that the CPU runs in 16 bits: their ``aten`` names without overload, and their names in torch's database."""

RUN_WIDE: dict[str, str] = {
    "multi_margin_loss": "nn.functional.multi_margin_loss",
    "multilabel_margin_loss": "nn.functional.multilabel_margin_loss",
    "multilabel_margin_loss_forward": "nn.functional.multilabel_margin_loss",
}
"""Ops that the CPU does not run in 16 bits: where the device does, they run in float32, and are rounded once."""

FUNCTIONS: frozenset[str] = frozenset({*REFUSED, *RUN_WIDE, "special_gammainc", "special_gammaincc"})
"""Names of the functions that call them: emulated outside autocast too."""

_TOLD = {torch.float16: "Half", torch.bfloat16: "BFloat16"}


def base(op: str) -> str:
    """``angle`` for ``aten::angle.out``."""
    return op.removeprefix("aten::").partition(".")[0]


def runner(op: str, device_type: str, run: Runner) -> Runner:
    """How an op of the tables runs on a device: as ``run`` does, but for what is recorded of the device.

    Where the device is recorded to refuse, what comes of it raises NotImplementedError, as torch does.
    """
    if device_type not in low_precision.devices() or device_type == "cpu":
        return run
    name = base(op)
    act = _refusing if name in REFUSED else _widening
    declared = {**REFUSED, **RUN_WIDE}[name]

    def recorded(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        low = _low_dtype((args, kwargs))
        return run(op, args, kwargs) if low is None else act(declared, device_type, low, run)(op, args, kwargs)

    return recorded


def _low_dtype(values: Any) -> torch.dtype | None:
    """The 16-bit dtype among nested tensors, if there is one."""
    tensors = (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return next((tensor.dtype for tensor in tensors if tensor.dtype in _TOLD), None)


def lacks(declared: str, device_type: str, low: torch.dtype) -> bool:
    """Whether the device is recorded to refuse the op in that dtype."""
    seen = low_precision.here(declared, device_type, dtype_name(low))
    return seen is not None and seen.lacks == "forward"


def _refusing(declared: str, device_type: str, low: torch.dtype, run: Runner) -> Runner:
    if not lacks(declared, device_type, low):
        return run
    found = low_precision.record_for(torch.__version__, device_type)
    how = "seen on such a device" if found.ran else "as torch's database of ops declares; not verified on a device"
    raise NotImplementedError(
        f"\"{declared}_{device_type}\" not implemented for '{_TOLD[low]}' (emulated {device_type}: {how}); "
        f"write x.float() for it, with autocast disabled"
    )


def _widening(declared: str, device_type: str, low: torch.dtype, run: Runner) -> Runner:
    if lacks(declared, device_type, low):
        return run

    def wide(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = _cast((args, kwargs), low, torch.float32)
        return _cast(run(op, args, kwargs), torch.float32, low)

    return wide


def _cast(values: Any, source: torch.dtype, target: torch.dtype) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda x: x.to(target) if x.dtype is source else x, values)
