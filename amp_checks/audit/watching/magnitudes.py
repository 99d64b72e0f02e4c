"""How large 16-bit values are: how near to overflow, how near to zero, and how many were lost at either end.

Bits are read, not values: without its sign, a floating number compares as the integer of the same bits. That is exact,
distinguishes zeros, subnormal and non-finite numbers, and costs a few integer passes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch

from amp_checks.torch_api.numerics import smallest

_ALL_BUT_SIGN = 0x7FFF


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """Sizes of 16-bit values.

    Attributes:
        dtype: float16 or bfloat16.
        count: how many values.
        zeros: how many are zero.
        subnormal: how many are below the least normal number (6.1e-5 in float16), and not zero.
        saturated: how many are the largest finite number or beyond: infinite or NaN. The least finite number is no
            value: masks are made of it.
        least: the smallest size that is not zero; infinity where there is none.
        greatest: the largest finite size; 0.0 where there is none.
    """

    dtype: torch.dtype
    count: int
    zeros: int
    subnormal: int
    saturated: int
    least: float
    greatest: float

    @property
    def bits_to_overflow(self) -> float:
        """How often the largest value can be doubled before it passes the largest number (65504 in float16)."""
        return math.log2(torch.finfo(self.dtype).max / self.greatest) if self.greatest else math.inf

    @property
    def bits_to_zero(self) -> float:
        """How often the smallest value can be halved before it is below the smallest number (6e-8 in float16)."""
        return math.log2(self.least / smallest(self.dtype))

    def __add__(self, other: Magnitudes) -> Magnitudes:
        """Both together. One dtype only: a float16 and a bfloat16 share no limits."""
        if self.dtype is not other.dtype:
            message = f"magnitudes of {self.dtype} and {other.dtype} cannot be added"
            raise TypeError(message)
        return Magnitudes(
            dtype=self.dtype,
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            subnormal=self.subnormal + other.subnormal,
            saturated=self.saturated + other.saturated,
            least=min(self.least, other.least),
            greatest=max(self.greatest, other.greatest),
        )

    def describe(self) -> str:
        """Headroom at both ends and the shares that are lost, in words."""
        info = torch.finfo(self.dtype)
        if not self.greatest and not self.saturated:
            return "all zero"
        ends = f"{self.bits_to_overflow:.1f} bits below {info.max:.5g}, {self.bits_to_zero:.1f} above {self._smallest}"
        parts = (("zero", self.zeros), ("subnormal", self.subnormal), ("saturated", self.saturated))
        return f"{ends}; " + ", ".join(f"{number / self.count:.2%} {name}" for name, number in parts)

    @property
    def _smallest(self) -> str:
        return f"{smallest(self.dtype):.0e}".replace("e-0", "e-")


def on_device(values: torch.Tensor) -> torch.Tensor:
    """What `read` makes `Magnitudes` of, still on the device: five integers (int64), so that nothing waits for it.

    Args:
        values: float16 or bfloat16, any shape, not empty.
    """
    limits = torch.finfo(values.dtype)
    signed = values.detach().view(torch.int16)
    masked, bits = signed == _bits(limits.min, values.dtype), signed.bitwise_and(_ALL_BUT_SIGN)
    tiny, largest = (_bits(value, values.dtype) for value in (limits.smallest_normal, limits.max))
    beyond = (bits >= largest) & ~masked
    return torch.stack(
        [
            (bits == 0).sum(),
            (bits < tiny).sum(),
            beyond.sum(),
            torch.where((bits == 0) | masked, _ALL_BUT_SIGN, bits).amin().long(),
            torch.where((bits > largest) | masked, 0, bits).amax().long(),
        ]
    )


def read(found: Iterable[int], *, dtype: torch.dtype, count: int) -> Magnitudes:
    """The magnitudes that `on_device` measured of ``count`` values."""
    zeros, below, saturated, least, greatest = found
    return Magnitudes(
        dtype=dtype,
        count=count,
        zeros=zeros,
        subnormal=below - zeros,
        saturated=saturated,
        least=_value(least, dtype),
        greatest=_value(greatest, dtype),
    )


def of(values: torch.Tensor, dtype: torch.dtype) -> Magnitudes | None:
    """The magnitudes that values of any floating dtype have once they are cast; None where there are none."""
    if not values.numel():
        return None
    cast = values.to(dtype)
    return read(on_device(cast).tolist(), dtype=dtype, count=cast.numel())


def _bits(value: float, dtype: torch.dtype) -> int:
    return int(torch.tensor(value, dtype=dtype).view(torch.int16).item())


def _value(bits: int, dtype: torch.dtype) -> float:
    value = float(torch.tensor(bits, dtype=torch.int16).view(dtype).item())
    return value if math.isfinite(value) else math.inf
