"""The 16-bit dtypes, and dtypes by name. For code that imports no torch: `amp_checks.core.LOW_DTYPES`."""

from __future__ import annotations

import torch

LOW = (torch.float16, torch.bfloat16)


def dtype_name(dtype: torch.dtype) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")
