"""Tells a lack of the CPU's from an error that the device would raise as well.

The recorded table: torch's op database (2.13.0) declares, by the name of an op, the dtypes of its CUDA kernel; listed
are the ops that it says CUDA runs in float16 and bfloat16 and that raise on the CPU. What is not listed and raises "not
implemented for 'Half'" here has no half kernel on CUDA either. Fourier transforms are left to the CPU's own refusal:
CUDA takes half only for lengths that are powers of two.
"""

from __future__ import annotations

import re

WIDENED: frozenset[str] = frozenset({"aten::avg_pool3d"})
"""Of those, the ones that run in float32 instead, their result rounded: one tensor out, nothing changed in place."""

DEVICE_HAS_HALF: frozenset[str] = WIDENED | {
    "aten::rrelu_with_noise",
    "aten::multi_margin_loss",
    "aten::multilabel_margin_loss_forward",
    "aten::_upsample_bilinear2d_aa",
    "aten::_upsample_bilinear2d_aa.vec",
}

_NO_HALF = re.compile(r"not implemented for '(Half|BFloat16)'")
_NO_KERNEL = re.compile(r"Could not run '[^']+' (with arguments from|from) the '")


def lack(op: str, error: RuntimeError, device_type: str) -> str | None:
    """Why the emulation cannot run the op, ending with what to change; None where the error is the op's own."""
    if device_type == "cpu":
        return None
    text = str(error)
    if _NO_KERNEL.search(text):
        return f"the CPU has no kernel for it; keep it out of the region, or run on a real {device_type}"
    if op in DEVICE_HAS_HALF and _NO_HALF.search(text):
        return f"the CPU has no low-precision kernel for it; write x.float() for it, or run on a real {device_type}"
    return None
