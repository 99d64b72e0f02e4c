"""What this machine has or lacks, where a row or a known defect means something on some alone: the one place for it."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
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


def _has_no_cuda() -> bool:
    """Whether torch finds no CUDA device, whatever an emulation answers."""
    import torch

    return not inspect.unwrap(torch.cuda.is_available)()


def _has_vector_kernels() -> bool:
    """Whether torch runs the CPU's kernels that were written for its vector instructions."""
    import torch

    return torch.backends.cpu.get_cpu_capability() != "DEFAULT"


def _has_cpp_compiler() -> bool:
    """Whether torch.compile's inductor can make kernels for the CPU."""
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++"))
    return any(shutil.which(name) for name in names)


CONDITIONS: dict[str, Callable[[], bool]] = {
    "": lambda: True,
    "built-with-cuda": _built_with_cuda,
    "has-no-cuda": _has_no_cuda,
    "has-a-cpp-compiler": _has_cpp_compiler,
    "has-vector-kernels": _has_vector_kernels,
    "onednn-has-no-float16-lstm": functools.partial(_lacks_lstm, "float16"),
    "onednn-has-no-bfloat16-lstm": functools.partial(_lacks_lstm, "bfloat16"),
}
"""Name -> whether it holds here. The empty name holds everywhere."""


@functools.cache
def holds(condition: str) -> bool:
    """Whether a condition of `CONDITIONS` holds on this machine."""
    return CONDITIONS[condition]()
