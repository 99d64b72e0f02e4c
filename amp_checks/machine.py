"""What this machine lacks, where a known defect shows only on some machines: the one place to add such a condition."""

from __future__ import annotations

import functools
from collections.abc import Callable


def _lacks_lstm(dtype: str) -> bool:
    """Whether oneDNN has no LSTM in that dtype on this CPU: its layer is called by itself, with no AMP about."""
    import torch

    low = getattr(torch, dtype)
    x, state = torch.zeros(2, 1, 4, dtype=low), torch.zeros(1, 4, dtype=low)
    weight, bias = torch.zeros(16, 4, dtype=low), torch.zeros(16, dtype=low)
    try:
        torch.mkldnn_rnn_layer(
            x, weight, weight, bias, bias, state, state, False, [], 2, 4, 1, True, False, False, False
        )
    except RuntimeError:
        return True
    return False


def _built_with_cuda() -> bool:
    """Whether this torch registers the rules that only a build with CUDA registers."""
    import torch

    return torch.version.cuda is not None


CONDITIONS: dict[str, Callable[[], bool]] = {
    "": lambda: True,
    "built-with-cuda": _built_with_cuda,
    "onednn-has-no-float16-lstm": functools.partial(_lacks_lstm, "float16"),
    "onednn-has-no-bfloat16-lstm": functools.partial(_lacks_lstm, "bfloat16"),
}
"""Name -> whether it holds here. The empty name holds everywhere."""


@functools.cache
def holds(condition: str) -> bool:
    """Whether a condition of `CONDITIONS` holds on this machine."""
    return CONDITIONS[condition]()
