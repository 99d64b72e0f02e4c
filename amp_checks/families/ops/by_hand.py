"""What a cast policy promises, done by hand: the casts written in Python, with autocast off.

Nothing here looks at the autocast rules of the torch that runs: this is the suite's own statement of what
each policy does (source: the comments of ``ATen/autocast_mode.h`` and the page on automatic mixed precision
of torch's documentation).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from amp_checks.core import Backend, CastPolicy, NotEmulated, Raised, attempt, first_line
from amp_checks.families.ops.entry import overload
from amp_checks.families.ops.inputs import Plan, make, map_leaves, tensors
from amp_checks.families.ops.rows import COMPLEX, RUN, OpCase
from amp_checks.torch_api.numerics import dtype_name, randn

HALVES = (torch.float16, torch.bfloat16)
CASTABLE = (torch.float32, *HALVES)
"""Floating dtypes that autocast touches; it leaves float64, whole numbers and complex numbers alone."""


def unnamed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without names for its dimensions, which torch had up to 2.12."""
    return tensor.rename(None) if hasattr(tensor, "rename") else tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An op with its inputs: what is called, and with what; ``public``: the function of ``torch`` to call."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    public: str = ""

    def run(self) -> Any:
        function: Any = overload(self.name)
        if self.public:
            function = functools.reduce(getattr, self.public.split("."), torch)
        return function(*self.args, **self.kwargs)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]

    @property
    def first_castable(self) -> bool:
        """Whether the first argument is a tensor that autocast would touch."""
        return bool(self.args) and isinstance(self.args[0], torch.Tensor) and self.args[0].dtype in CASTABLE

    def with_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Call:
        """The same call with each tensor replaced by ``function`` of it."""
        args, kwargs = map_leaves(function, (self.args, self.kwargs), torch.Tensor)
        return dataclasses.replace(self, args=args, kwargs=kwargs)


def call_of(case: OpCase, backend: Backend, plan: Plan) -> Call:
    """The row's call with its inputs made for the backend's device under a dtype plan."""
    overload(case.id)  # an op that does not exist is the table's fault, not an exception of the code under test
    args, kwargs = make(
        (case.args, case.kwargs), plan=plan, low=backend.low_dtype, device=backend.device_type, seed=case.id
    )
    return Call(name=case.id, args=args, kwargs=kwargs, public=case.call)


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


def cast_by_hand(call: Call, policy: CastPolicy, *, low: torch.dtype, enters: str = "") -> Call:
    """The call that the policy promises to make with autocast off.

    Args:
        call: as the user wrote it.
        policy: the op's.
        low: the dtype of the region.
        enters: the overload that ``fp32_append_dtype`` calls instead.
    """
    match policy:
        case CastPolicy.FP32_SET_OPT_DTYPE if call.first_castable and "dtype" not in call.kwargs:
            return dataclasses.replace(call, kwargs={**call.kwargs, "dtype": torch.float32})
        case CastPolicy.FP32_APPEND_DTYPE:
            kept = torch.float32 if call.first_castable else call.tensors[0].dtype
            return dataclasses.replace(call, name=enters or call.name, kwargs={**call.kwargs, "dtype": kept})
    target = target_dtype(policy, [tensor.dtype for tensor in call.tensors], low)
    if target is None:
        return call
    return call.with_tensors(lambda tensor: tensor.to(target) if tensor.dtype in CASTABLE else tensor)


def run_dtype(policy: CastPolicy, dtypes: Sequence[torch.dtype], low: torch.dtype) -> torch.dtype | None:
    """The dtype in which the op runs; None where its inputs alone decide."""
    if policy in (CastPolicy.FP32_SET_OPT_DTYPE, CastPolicy.FP32_APPEND_DTYPE):
        return torch.float32 if dtypes and dtypes[0] in CASTABLE else None
    return target_dtype(policy, dtypes, low)


def output_names(case: OpCase, ran_in: torch.dtype) -> tuple[str, ...]:
    """The dtypes of the row's outputs, by name, where the op ran in that dtype."""
    meaning = {RUN: dtype_name(ran_in), COMPLEX: dtype_name(ran_in.to_complex())}
    return tuple(meaning.get(name, name) for name in case.outputs)


LACKING = "the emulation lacks the op for that dtype"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call gave: its tensors in order, or the exception that it raised."""

    tensors: tuple[torch.Tensor, ...] = ()
    error: str | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype_name(tensor.dtype) for tensor in self.tensors)


def outcome(subject: str, function: Callable[[], Any], *, lacks: bool = False) -> Outcome:
    """Run code under test; an exception of it is an outcome like another.

    Args:
        subject: what is run, as a finding will name it.
        function: the code under test.
        lacks: also what the emulation lacks is an outcome, `LACKING`: where what matters was seen before.
    """
    try:
        given = attempt(subject, function)
    except NotEmulated:
        if not lacks:
            raise
        return Outcome(error=LACKING)
    except Raised as raised:
        return Outcome(error=f"{type(raised.error).__name__}: {first_line(raised.error)}")
    return Outcome(tensors=tuple(leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)))


def gradients(
    case: OpCase,
    call: Call,
    *,
    prepare: Callable[[Call], Call] = lambda call: call,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Outcome:
    """Gradients of the row's differentiable inputs, made leaves; the backward pass runs outside the region.

    Args:
        case: the row; says which inputs have a gradient.
        call: its call; the leaves have the dtypes of its tensors.
        prepare: casts written by hand, recorded by autograd.
        around: the region that the forward pass runs in.

    Returns:
        One gradient per leaf, of outputs weighted by fixed numbers; an empty tensor for a leaf that has none.
    """
    specs = tensors((case.args, case.kwargs))
    leaves: list[torch.Tensor] = []

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        spec = next(specs)
        if spec.dtype is not None or not spec.grad or not tensor.is_floating_point():
            return tensor
        leaves.append(tensor.detach().clone().requires_grad_())
        return leaves[-1]

    made = call.with_tensors(leaf)

    def forward_and_backward() -> list[torch.Tensor]:
        with around():
            outputs = prepare(made).run()
        found = torch.autograd.grad(*_weighted(outputs, leaves), allow_unused=True)
        return [torch.empty(0) if gradient is None else gradient for gradient in found]

    return outcome(f"forward and backward of {call.name}", forward_and_backward)


def _weighted(
    outputs: Any, leaves: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    differentiable = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    weights = []
    for index, output in enumerate(differentiable):
        weight = randn(*output.shape, 2, seed=f"weights {index}").bfloat16().float()
        made = torch.view_as_complex(weight) if output.is_complex() else weight[..., 0]
        weights.append(made.to(device=output.device, dtype=output.dtype))
    return differentiable, leaves, weights


def kind(error: str | None) -> str:
    """The class of an outcome's exception; empty for none. Two kernels may word one lack differently."""
    return (error or "").split(":", maxsplit=1)[0]
