"""The ways to force an op to FP32 inside an autocast region, as users write them.

Each is called with the tensors that a region made, inside that region.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend

Op = Callable[..., Any]


def disabled_region(backend: Backend, op: Op, *tensors: torch.Tensor) -> Any:
    """The remedy: no autocast, and FP32 inputs."""
    with backend.region(enabled=False):
        return op(*(tensor.float() for tensor in tensors))


def decorated(backend: Backend, op: Op, *tensors: torch.Tensor) -> Any:
    """The same as a decorator of a function of one's own: ``@torch.autocast("cuda", enabled=False)``."""
    region: Any = backend.region(enabled=False)

    @region  # type: ignore[untyped-decorator]
    def forced(*given: torch.Tensor) -> Any:
        return op(*(tensor.float() for tensor in given))

    return forced(*tensors)


def custom_function(backend: Backend, op: Op, *tensors: torch.Tensor) -> Any:
    """An autograd function whose forward is decorated with ``custom_fwd(cast_inputs=torch.float32)``."""

    class Forced(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=backend.device_type, cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, *given: torch.Tensor) -> Any:
            with torch.enable_grad():
                ctx.given = [tensor.detach().requires_grad_() for tensor in given]
                out = op(*ctx.given)
            ctx.out = out if isinstance(out, tuple) else (out,)
            kept = tuple(tensor.detach() for tensor in ctx.out)
            ctx.mark_non_differentiable(*(tensor for tensor in kept if not _real_or_complex(tensor)))
            return kept if isinstance(out, tuple) else kept[0]

        @staticmethod
        @torch.amp.custom_bwd(device_type=backend.device_type)  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            pairs = [pair for pair in zip(ctx.out, gradients, strict=True) if pair[0].requires_grad]
            return torch.autograd.grad(
                [out for out, _ in pairs], ctx.given, [gradient for _, gradient in pairs], allow_unused=True
            )

    return Forced.apply(*tensors)  # type: ignore[no-untyped-call]


def _real_or_complex(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def checkpointed(backend: Backend, op: Op, *tensors: torch.Tensor) -> Any:
    """The remedy inside a checkpointed part: it is run again in backward, outside the region."""
    return _checkpoint(backend, op, tensors, use_reentrant=False)


def checkpointed_reentrant(backend: Backend, op: Op, *tensors: torch.Tensor) -> Any:
    """The same with the older implementation, whose first pass is run without gradients."""
    return _checkpoint(backend, op, tensors, use_reentrant=True)


def _checkpoint(backend: Backend, op: Op, tensors: tuple[torch.Tensor, ...], *, use_reentrant: bool) -> Any:
    def forced(*given: torch.Tensor) -> Any:
        with private.new_memory_is_nan():  # a checkpoint may keep it
            return disabled_region(backend, op, *given)

    try:
        return checkpoint(forced, *tensors, use_reentrant=use_reentrant)
    except Exception as error:
        # In torch 2.11 a checkpoint whose function raised leaves its hooks on until the frames of the traceback are
        # gone: they would take hold of what the next item saves for backward.
        traceback.clear_frames(error.__traceback__)
        raise


def compiled(backend: Backend, op: Op, *tensors: torch.Tensor) -> Any:
    """The remedy inside a compiled function."""
    torch.compiler.reset()

    @torch.compile(backend="aot_eager")
    def forced(*given: torch.Tensor) -> Any:
        return disabled_region(backend, op, *given)

    try:
        return forced(*tensors)
    finally:
        torch.compiler.reset()


OTHER_WAYS: dict[str, Callable[..., Any]] = {
    "decorator": decorated,
    "custom_fwd": custom_function,
    "checkpoint": checkpointed,
    "reentrant checkpoint": checkpointed_reentrant,
}
"""Ways that must give what `disabled_region` gives, to the bit."""
