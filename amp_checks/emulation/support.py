"""Tells a lack of the CPU's from an error that the device would raise as well."""

from __future__ import annotations

import re

_NO_HALF = re.compile(r"not implemented for '(Half|BFloat16)'")
_NO_KERNEL = re.compile(r"Could not run '[^']+' (with arguments from|from) the '")

DEVICE_HAS_HALF: frozenset[str] = frozenset()
"""Ops that CUDA runs in float16 and bfloat16 and the CPU does not."""


def lack(op: str, error: RuntimeError, device_type: str) -> str | None:
    """Why the emulation cannot run the op, ending with what to change; None where the error is the op's own."""
    text = str(error)
    if _NO_KERNEL.search(text):
        return f"the CPU has no kernel for it; keep it out of the region, or run on a real {device_type}"
    missing = _NO_HALF.search(text)
    if missing and op in DEVICE_HAS_HALF:
        return f"the CPU has no {missing[1]} kernel for it; give it float32, or run on a real {device_type}"
    return None
