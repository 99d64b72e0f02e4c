"""Which ops a device's autocast has a rule for, read from the dispatcher; and which ops reach others inside.

The dispatcher knows the rules. It does not know what the kernel of an op calls, so two tables here say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_checks.torch_api import private

_aten_elementwise = ("native_dropout", "bernoulli_.float", "div_.Scalar", "mul.Tensor", "mul_.Tensor", "add.Tensor")
_batch_norm = ("_batch_norm_impl_index", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
_pool = ("max_pool2d_with_indices", "max_pool3d_with_indices", "mkldnn_max_pool2d", "squeeze.dim", "unsqueeze")
_views: tuple[str, ...] = ()

REACHED_BY_COMPOSITE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "T t mT mH H numpy_T adjoint matrix_H reshape reshape_as contiguous flatten unflatten expand_as view_as "
            "swapaxes swapdims movedim moveaxis ravel narrow chunk size type_as to float half bfloat16 double "
            "is_floating_point is_complex result_type broadcast_to atleast_1d atleast_2d atleast_3d "
            "_pad_packed_sequence"
        ).split(),
        _views,
    ),
    **dict.fromkeys(
        (
            "dropout dropout_ feature_dropout feature_dropout_ alpha_dropout alpha_dropout_ "
            "feature_alpha_dropout feature_alpha_dropout_"
        ).split(),
        _aten_elementwise,
    ),
    "batch_norm": _batch_norm,
    "max_pool1d": (*_pool, "max_pool1d_with_indices"),
    "max_pool2d": _pool,
    "max_pool3d": _pool,
    "adaptive_avg_pool2d": ("mean.dim", "_adaptive_avg_pool2d", "mkldnn_adaptive_avg_pool2d"),
}
"""Composite ops (``aten`` names without overload) and the ops that they may call besides views and copies.

They run whole, on the inner tensors, where none of those has a rule: it is cheaper than decomposing them, and a random
one draws the numbers that it draws on the CPU.
"""

KERNELS_THAT_REACH_RULES: dict[str, str] = {
    "aten::_trilinear": "CompositeExplicitAutogradNonFunctional",
    "aten::linalg_pinv.atol_rtol_tensor": "CompositeExplicitAutogradNonFunctional",
    "aten::ldexp.Tensor": "CompositeExplicitAutograd",
    "aten::mvlgamma": "CompositeExplicitAutograd",
    "aten::_safe_softmax": "CompositeExplicitAutograd",
    "aten::_unsafe_index_put": "CompositeExplicitAutograd",
    "aten::_unsafe_masked_index_put_accumulate": "CompositeExplicitAutograd",
}
"""Ops without a rule whose kernel, one for all devices, calls ops that have one; and the key of that kernel.

Autograd differentiates the op, not what its kernel calls, so the kernel runs on wrappers below autograd.
"""


def calls_no_rule(op: str, args: tuple[Any, ...]) -> bool:
    """Whether this call of one of `KERNELS_THAT_REACH_RULES` meets no rule, so that the CPU's kernel stands for it.

    ``ldexp`` raises 2 to the exponent with ``pow``, whose rule casts no whole numbers; since torch 2.14 it has a
    kernel of the device's own for them.
    """
    return op == "aten::ldexp.Tensor" and not args[1].is_floating_point()


def registered_rules(device_type: str) -> frozenset[str]:
    """Names, as the dispatcher's (``aten::mm``), of the ops that autocast on this device type has a rule for.

    Read at each call: a rule that was removed (its kernel replaced by a fallthrough) is not among them.

    Raises:
        ValueError: autocast knows no such device type.
    """
    try:
        return private.autocast_rules(device_type)
    except KeyError:
        raise ValueError(f"no autocast rules for device type {device_type!r}") from None


def reaches_no_rule(name: str, rules: frozenset[str]) -> bool:
    """Whether a composite op, by its ``aten`` name without overload, is known to call no op with a rule."""
    reached = REACHED_BY_COMPOSITE.get(name)
    return reached is not None and not any(f"aten::{op}" in rules for op in reached)


def rnn_layers_are_cast(device_type: str, rules: frozenset[str]) -> bool:
    """Whether cuDNN's RNN layers are cast on that device type. A build without CUDA does not register their rule."""
    return device_type == "cuda" and (torch.version.cuda is None or "aten::_cudnn_rnn" in rules)


class Changes:
    """Tells the active regions of changes made to the dispatcher through `torch.library`."""

    def __init__(self) -> None:
        self.count = 0
        self._listeners: list[Callable[[], None]] = []

    def tell(self) -> None:
        """The rules may have changed."""
        self.count += 1
        for listener in tuple(self._listeners):
            listener()

    @contextmanager
    def heard_by(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call the listener at each change, until the end of the block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


RULES_CHANGED = Changes()
