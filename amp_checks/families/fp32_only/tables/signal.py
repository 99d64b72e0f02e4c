"""Fourier transforms and windows that do not run in 16 bits. Add an op as one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_checks.families.fp32_only.rows import Fp32OnlyCase, Input

_SIGNAL = (Input(shape=(6, 12)),)
"""No power of two: where CUDA has 16-bit transforms, it has them for those lengths only."""

_TRANSFORMS = "fft fft2 fftn ifft ifft2 ifftn rfft rfft2 rfftn ihfft ihfft2 ihfftn".split()
_OF_SPECTRA = "hfft hfft2 hfftn irfft irfft2 irfftn".split()
"""They take a spectrum; given a real one, they take it as such."""

_WINDOWS: dict[str, dict[str, Any]] = {
    **{name: {} for name in "hamming hann bartlett blackman cosine exponential kaiser nuttall".split()},
    "gaussian": {"std": 1.5},
    "general_cosine": {"a": [0.5, 0.4, 0.1]},
    "general_hamming": {"alpha": 0.6},
}


def _windowed(name: str, settings: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A signal under a window of its own dtype."""
    window = getattr(torch.signal.windows, name)

    def apply(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = window(x.shape[-1], **settings, dtype=x.dtype, device=x.device)
        return x * made

    return apply


def _stft(x: torch.Tensor) -> torch.Tensor:
    return torch.stft(x, 16, window=torch.ones(16, dtype=x.dtype, device=x.device), return_complex=True)


ROWS: tuple[Fp32OnlyCase, ...] = (
    Fp32OnlyCase(declared="stft", op=_stft, inputs=(Input(shape=(2, 64)),)),
    *(
        Fp32OnlyCase(declared=f"fft.{name}", op=getattr(torch.fft, name), inputs=_SIGNAL)
        for name in (*_TRANSFORMS, *_OF_SPECTRA)
    ),
    *(
        Fp32OnlyCase(declared=f"signal.windows.{name}", op=_windowed(name, settings), inputs=_SIGNAL)
        for name, settings in _WINDOWS.items()
    ),
)
