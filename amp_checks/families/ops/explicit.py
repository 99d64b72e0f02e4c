"""What a cast policy promises, as explicit casts: written in Python, with autocast off.

Nothing here looks at the autocast rules of the torch that runs: this is the suite's own statement of what
each policy does (source: the comments of ``ATen/autocast_mode.h`` and the page on automatic mixed precision
of torch's documentation).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from amp_checks.core import CastPolicy
from amp_checks.families.ops.entry import overload
from amp_checks.families.ops.inputs import FIRST, Draw, Plan, make, map_leaves
from amp_checks.families.ops.rows import COMPLEX, RUN, SCRATCH, OpCase
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import LOW, dtype_name

CASTABLE = (torch.float32, *LOW)
"""Floating dtypes that autocast touches; it leaves float64, whole numbers and complex numbers alone."""


def resolved(path: str) -> Callable[..., Any]:
    """What is importable under that path: ``torch.nn.functional.linear``."""
    module, *names = path.split(".")
    return functools.reduce(getattr, names, importlib.import_module(module))  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An op with its inputs: what is called, and with what; ``function``: what is called in place of the overload."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    function: Callable[..., Any] | None = None

    @classmethod
    def of(cls, row: OpCase, backend: Backend, plan: Plan = Plan.FLOAT32, drawn: Draw = FIRST) -> Call:
        """The row's call with new inputs, the same each time, for the backend's device under a dtype plan."""
        overload(row.id)  # an op that does not exist is the table's fault, not an exception of the code under test
        args, kwargs = make(
            (row.args, row.kwargs),
            plan=plan,
            low=backend.low_dtype,
            device=backend.device_type,
            seed=row.id,
            drawn=drawn,
        )
        return cls(name=row.id, args=args, kwargs=kwargs, function=resolved(row.call) if row.call else None)

    def run(self) -> Any:
        return (self.function or overload(self.name))(*self.args, **self.kwargs)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [tensor.dtype for tensor in self.tensors]

    @property
    def first_castable(self) -> bool:
        """Whether the first argument is a tensor that autocast would touch."""
        return bool(self.args) and isinstance(self.args[0], torch.Tensor) and self.args[0].dtype in CASTABLE

    def with_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Call:
        """The same call with each tensor replaced by ``function`` of it."""
        args, kwargs = map_leaves(function, (self.args, self.kwargs), torch.Tensor)
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def by_policy(self, policy: CastPolicy, *, low: torch.dtype, enters: str = "") -> Call:
        """The call that the policy promises to make of this one, for autocast off.

        Args:
            policy: the op's.
            low: the dtype of the region.
            enters: the overload that ``fp32_append_dtype`` calls instead.
        """
        match policy:
            case CastPolicy.FP32_SET_OPT_DTYPE if self.first_castable and "dtype" not in self.kwargs:
                return dataclasses.replace(self, kwargs={**self.kwargs, "dtype": torch.float32})
            case CastPolicy.FP32_APPEND_DTYPE:
                kept = torch.float32 if self.first_castable else self.tensors[0].dtype
                return dataclasses.replace(self, name=enters or self.name, kwargs={**self.kwargs, "dtype": kept})
        target = target_dtype(policy, self.dtypes, low)
        if target is None:
            return self
        return self.with_tensors(lambda tensor: tensor.to(target) if tensor.dtype in CASTABLE else tensor)


def target_dtype(policy: CastPolicy, dtypes: Sequence[torch.dtype], low: torch.dtype) -> torch.dtype | None:
    """The dtype to which a policy casts its tensor inputs; None: it leaves them as they are."""
    castable = [dtype for dtype in dtypes if dtype in CASTABLE]
    match policy:
        case CastPolicy.LOWER_PRECISION_FP:
            return low
        case CastPolicy.FP32:
            return torch.float32
        case CastPolicy.PROMOTE if castable:
            return torch.float32 if torch.float32 in castable else low
        case _:
            return None


def run_dtype(policy: CastPolicy, dtypes: Sequence[torch.dtype], low: torch.dtype) -> torch.dtype | None:
    """The dtype in which the op runs; None where its inputs alone decide."""
    if policy in (CastPolicy.FP32_SET_OPT_DTYPE, CastPolicy.FP32_APPEND_DTYPE):
        return torch.float32 if dtypes and dtypes[0] in CASTABLE else None
    return target_dtype(policy, dtypes, low)


def output_names(case: OpCase, ran_in: torch.dtype) -> tuple[str, ...]:
    """The dtypes of the row's outputs, by name, where the op ran in that dtype."""
    meaning = {RUN: dtype_name(ran_in), COMPLEX: dtype_name(ran_in.to_complex())}
    return tuple(meaning.get(name, name) for name in case.outputs if name != SCRATCH)
