"""``torch.backends`` as a program for CUDA finds it: what it sets there is put back when the last region ends.

cuDNN itself must stay off, or composite ops would choose its kernels for tensors that are said to be on the device: the
switch that a program reads and writes is another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_checks.torch_api import private

CUDNN_VERSION = 91002
"""What cuDNN says of itself where there is none."""
_SWITCHES = ("benchmark", "deterministic")
"""Those of cuDNN that are put back. TF32 is not: torch keeps it under several names, which may not be mixed."""


@dataclasses.dataclass(slots=True)
class _Cudnn:
    enabled: bool = True


CUDNN = _Cudnn()
"""What the program in the region thinks of it."""


def remembered() -> Callable[[], None]:
    """Puts every switch back as it is now."""
    cudnn = torch.backends.cudnn
    before = {name: getattr(cudnn, name) for name in _SWITCHES}
    CUDNN.enabled = bool(cudnn.enabled)

    def put_back() -> None:
        for name, value in before.items():
            if getattr(cudnn, name) != value:
                setattr(cudnn, name, value)

    return put_back


def read(original: Any) -> bool:
    """``torch.backends.cudnn.enabled``, as the program left it."""
    del original
    return CUDNN.enabled


def write(original: Any, enabled: bool) -> None:
    """Note it; the real switch stays off."""
    del original
    CUDNN.enabled = bool(enabled)


def places() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Where the switch is read and written: owner, attribute and what answers."""
    owner, reads, writes = private.cudnn_switch()
    yield owner, reads, read
    yield owner, writes, write
