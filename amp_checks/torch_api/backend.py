"""The AMP under test: the one seam where devices, emulation, planted faults and other people's AMP come in.

Importing this imports no torch: the command line lists backends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from amp_checks.core import border

if TYPE_CHECKING:
    import torch


class Autocast(Protocol):
    """Anything called like `torch.autocast` that returns a context manager."""

    def __call__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> AbstractContextManager[Any]: ...


class GradScaler(Protocol):
    """Anything called like `torch.amp.GradScaler`: ``grad_scaler(device, init_scale=..., ...)``."""

    def __call__(self, device: str, /, **settings: Any) -> Any: ...


def _torch_autocast(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast(*args, **kwargs)


def _torch_grad_scaler(device: str, /, **settings: Any) -> Any:
    import torch

    return torch.amp.GradScaler(device, **settings)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The AMP under test: the one seam where devices, emulation, mutants and other people's AMP come in.

    Attributes:
        id: ``cuda-float16``, ``emulated-cuda-bfloat16``, ...
        device_type: the device whose autocast rules apply, and where tensors are asked for (``device="cuda"`` works
            under emulation too: the tensors stay on the CPU).
        dtype: name of the low dtype, ``"float16"`` or ``"bfloat16"``.
        emulated: True where the rules are the device's and the kernels are the CPU's.
        numerics: where the arithmetic comes from: ``"device"``, or of an emulation ``"native"`` (the CPU's own half
            kernels) or ``"float32"`` (float32 inside, one rounding).
        autocast: factory of regions, called like `torch.autocast`.
        grad_scaler: factory of scalers, called like `torch.amp.GradScaler`.
        activate: entered around each check; starts the emulation.
    """

    id: str
    device_type: str
    dtype: str
    emulated: bool = False
    numerics: str = "device"
    autocast: Autocast = _torch_autocast
    grad_scaler: GradScaler = _torch_grad_scaler
    activate: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def low_dtype(self) -> torch.dtype:
        """The autocast dtype of this backend's regions."""
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def region(self, *, enabled: bool = True, cache_enabled: bool | None = None) -> AbstractContextManager[Any]:
        """An autocast region of this backend, in its low dtype."""
        settings: dict[str, Any] = {"dtype": self.low_dtype, "enabled": enabled, "cache_enabled": cache_enabled}
        return border.current().region(lambda: self.autocast(self.device_type, **settings))

    def scaler(self, **settings: Any) -> Any:
        """A gradient scaler of this backend; ``settings`` as for `torch.amp.GradScaler`."""
        return self.grad_scaler(self.device_type, **settings)
