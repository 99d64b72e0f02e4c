"""What to do with a function of torch inside an autocast region: pass it, skip the emulation, or emulate it.

Emulating costs tens of microseconds, so a function is skipped where none of the ops behind it has a rule and none is a
composite that may reach one.
"""

from __future__ import annotations

import enum
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from amp_checks.emulation.recorded import FUNCTIONS
from amp_checks.emulation.rules import KERNELS_THAT_REACH_RULES, reaches_no_rule
from amp_checks.emulation.shims import DEVICE_ONLY
from amp_checks.emulation.support import DEVICE_HAS_HALF, WIDENED
from amp_checks.emulation.wrapper import GUARDED_METHODS
from amp_checks.torch_api import private


class Plan(enum.Enum):
    """How the function mode treats a function."""

    PASS = "pass"  # noqa: S105 - no password
    """Not an op: attributes, hooks, conversions, backward (which runs user code that must see the mode again)."""
    SKIP = "skip"
    """No rule can apply: run on the CPU tensors as they are."""
    EMULATE = "emulate"
    ALWAYS = "always"
    """Emulate outside autocast too: only a device has the kernel, in any dtype or in a low one."""


_PASSED_METHODS = (
    "__array__ __array_wrap__ __bool__ __complex__ __contains__ __copy__ __deepcopy__ __dir__ __dlpack__ "
    "__dlpack_device__ __float__ __format__ __getitem__ __hash__ __index__ __int__ __iter__ __len__ __reduce_ex__ "
    "__repr__ __reversed__ __setitem__ __setstate__ _typed_storage as_subclass backward data_ptr detach dim "
    "element_size has_names is_complex is_contiguous is_conj is_floating_point is_inference is_neg is_nonzero "
    "is_pinned is_set_to is_shared is_signed item ndimension nelement new new_tensor numel numpy register_hook "
    "register_post_accumulate_grad_hook requires_grad_ retain_grad share_memory_ size storage storage_offset "
    "storage_type stride tolist type untyped_storage _is_view nonzero tensor_split"
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
    torch.is_nonzero,
    torch.numel,
    private.set_grad_enabled,
    torch.nonzero,
    torch.tensor_split,
)

ALIASES: dict[Any, Any] = {getattr(Tensor, name): op for name, op in GUARDED_METHODS.items()}
"""Bindings that ask for a guard of the device before they call the op, and the op itself."""

_PASSED = frozenset(
    {
        *(found for name in _PASSED_METHODS if (found := getattr(Tensor, name, None)) is not None),
        *_PASSED_FUNCTIONS,
    }
)

_OPERATORS = {
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
    **dict.fromkeys("float half bfloat16 double long int short char byte bool".split(), "to"),
}
"""Operators and methods whose bindings are named unlike the op."""

_OPS_OF_FUNCTION: dict[Any, tuple[str, ...]] = {
    F.relu: ("relu", "relu_"),
    F.relu6: ("relu6", "relu6_", "hardtanh", "hardtanh_"),
    F.hardtanh: ("hardtanh", "hardtanh_"),
    F.leaky_relu: ("leaky_relu", "leaky_relu_"),
    F.elu: ("elu", "elu_"),
    F.silu: ("silu", "silu_"),
    F.mish: ("mish", "mish_"),
    F.hardswish: ("hardswish", "hardswish_"),
    F.hardsigmoid: ("hardsigmoid", "hardsigmoid_"),
    F.sigmoid: ("sigmoid",),
    F.tanh: ("tanh",),
    F.dropout: ("dropout", "dropout_"),
    F.dropout1d: ("feature_dropout", "feature_dropout_"),
    F.dropout2d: ("feature_dropout", "feature_dropout_"),
    F.dropout3d: ("feature_dropout", "feature_dropout_"),
    F.alpha_dropout: ("alpha_dropout", "alpha_dropout_"),
    F.batch_norm: ("batch_norm",),
    F.max_pool1d: ("max_pool1d",),
    F.max_pool2d: ("max_pool2d",),
    F.max_pool3d: ("max_pool3d",),
    F.adaptive_avg_pool2d: ("adaptive_avg_pool2d",),
    F.embedding: ("embedding", "embedding_renorm_"),
    torch.split: ("split", "split_with_sizes"),
    Tensor.split: ("split", "split_with_sizes"),
}
"""Functions written in Python, and all the ops that they call: such a function may be skipped."""


def plan(func: Any, rules: frozenset[str]) -> Plan:
    """The plan for a function, given the device's rules."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__") or func in _PASSED:
        return Plan.PASS
    if name.partition(".")[0] in DEVICE_ONLY | FUNCTIONS or f"aten::{name.partition('.')[0]}" in WIDENED:
        return Plan.ALWAYS
    if isinstance(func, private.OpOverload):
        return Plan.SKIP if func.namespace == "aten" and _op_is_harmless(func.name(), rules) else Plan.EMULATE
    if isinstance(func, private.OpOverloadPacket):
        aten = getattr(torch.ops.aten, name, None) is func
        return Plan.SKIP if aten and _is_harmless(name, rules) else Plan.EMULATE
    ops = _OPS_OF_FUNCTION.get(func)
    if ops is None:
        if isinstance(func, FunctionType):
            return Plan.EMULATE
        ops = (_OPERATORS.get(name, name),)
    return Plan.SKIP if all(_is_harmless(op, rules) for op in ops) else Plan.EMULATE


def _is_harmless(name: str, rules: frozenset[str]) -> bool:
    packet: Any = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, private.OpOverloadPacket):
        return False
    return all(_op_is_harmless(getattr(packet, overload).name(), rules) for overload in packet.overloads())


def _op_is_harmless(op: str, rules: frozenset[str]) -> bool:
    if op in rules or op in KERNELS_THAT_REACH_RULES or op in DEVICE_HAS_HALF:
        return False
    base = op.removeprefix("aten::").partition(".")[0]
    return reaches_no_rule(base, rules) or not private.is_composite_implicit(op)
