"""What to do with a function of torch inside an autocast region: pass it, skip the emulation, or emulate it.

Emulating costs tens of microseconds, so a function is skipped where none of the ops behind it has a rule and none is a
composite that may reach one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from amp_checks import _torch_private as private


class Plan(enum.Enum):
    """How the function mode treats a function."""

    PASS = "pass"
    """Not an op: attributes, hooks, conversions, backward (which runs user code that must see the mode again)."""
    SKIP = "skip"
    """No rule can apply: run on the CPU tensors as they are."""
    EMULATE = "emulate"


_PASSED_METHODS = (
    "__array__ __array_wrap__ __contains__ __copy__ __deepcopy__ __dir__ __dlpack__ __dlpack_device__ __format__ "
    "__getitem__ __hash__ __iter__ __len__ __reduce_ex__ __repr__ __reversed__ __setitem__ __setstate__ "
    "_typed_storage as_subclass backward data_ptr detach dim element_size has_names is_complex is_contiguous is_conj "
    "is_floating_point is_inference is_neg is_pinned is_set_to is_shared is_signed item ndimension nelement new numel "
    "numpy register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad share_memory_ size storage "
    "storage_offset storage_type stride tolist type untyped_storage _is_view nonzero tensor_split"
).split()

_PASSED_FUNCTIONS = (
    torch.autograd.grad,
    torch.autograd.backward,
    torch.nn.init.trunc_normal_,
    torch.nn.init.uniform_,
    torch.nn.init.normal_,
    torch.nn.init.constant_,
    torch.nn.init.kaiming_uniform_,
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
    torch.nonzero,
    torch.tensor_split,
)

_PASSED = frozenset(
    {
        *(found for name in _PASSED_METHODS if (found := getattr(Tensor, name, None)) is not None),
        *_PASSED_FUNCTIONS,
    }
)

_HARMLESS_COMPOSITES = frozenset(
    (
        "T t mT mH H numpy_T reshape contiguous flatten unflatten expand expand_as view_as squeeze unsqueeze transpose "
        "swapaxes swapdims movedim moveaxis ravel narrow chunk size type_as float half bfloat16 double to dropout "
        "is_floating_point relu"
    ).split()
)
"""Composites that only make views or copies, or (dropout) reach no more than elementwise ops without a rule."""

_NAMES = {
    "__radd__": "add",
    "__iadd__": "add_",
    "__rmul__": "mul",
    "__imul__": "mul_",
    "__truediv__": "div",
    "__rtruediv__": "div",
    "__itruediv__": "div_",
    "__neg__": "neg",
    "__sub__": "sub",
    "__rsub__": "rsub",
    "__isub__": "sub_",
}
"""Operators whose bindings are named unlike the op."""


def plan(func: Callable[..., Any], rules: frozenset[str]) -> Plan:
    """The plan for a function, given the device's rules."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__") or func in _PASSED:
        return Plan.PASS
    if isinstance(func, FunctionType):
        return Plan.EMULATE
    return Plan.SKIP if _is_harmless(_NAMES.get(name, name), rules) else Plan.EMULATE


def _is_harmless(name: str, rules: frozenset[str]) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    ops = [getattr(packet, overload).name() for overload in packet.overloads()]
    if any(op in rules for op in ops):
        return False
    return name in _HARMLESS_COMPOSITES or not any(private.is_composite_implicit(op) for op in ops)
