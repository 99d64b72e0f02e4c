"""What torch keeps to itself about regions: entering one by a function, and what custom functions record.

The rest of torch's private API is in `amp_checks.torch_api.private`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_checks.torch_api.private import _private


def enter_autocast(device_type: str, dtype: torch.dtype, enabled: bool, cache_enabled: bool) -> Any:
    """What a graph calls where its program entered a region; gives what `exit_autocast` takes."""
    enter = _private("amp._enter_autocast", "to enter a region as a graph does")
    return enter(device_type, dtype, enabled, cache_enabled)


def exit_autocast(entered: Any) -> None:
    """What a graph calls where its program left a region."""
    _private("amp._exit_autocast", "to leave a region as a graph does")(entered)


def recorded_in_forward(context: Any) -> tuple[bool, torch.dtype]:
    """What ``custom_fwd`` has written down for ``custom_bwd``: whether autocast was on, and its dtype."""
    return context._fwd_used_autocast, context._dtype


def cast_of_cuda_front_end() -> Callable[..., Any]:
    """The deprecated ``torch.cuda.amp.autocast_mode._cast(value, dtype)``."""
    found: Callable[..., Any] = _private("cuda.amp.autocast_mode._cast", "to see that it still casts")
    return found


def private_backend() -> str:
    """The name of the device type that torch keeps for devices of others."""
    found: str = _private(
        "_C._get_privateuse1_backend_name", "to ask for a region of a device that torch does not know"
    )()
    return found
