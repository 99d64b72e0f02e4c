"""Text as regression targets: bits that 16-bit floats hold exactly, and code points that they do not."""

from __future__ import annotations

import torch

BITS = 16


def encode_bits(text: str) -> torch.Tensor:
    """Each character as 16 targets, +1 for a set bit and -1 for a clear one, lowest bit first.

    Returns:
        float32 of shape ``(1, 16 * len(text))``.

    Raises:
        ValueError: a character lies outside the Basic Multilingual Plane and has no 16-bit code.
    """
    if outside := [character for character in text if ord(character) >> BITS]:
        message = f"{outside[0]!r} has no 16-bit code: use characters of the Basic Multilingual Plane"
        raise ValueError(message)
    return torch.tensor([[1.0 if ord(character) >> bit & 1 else -1.0 for character in text for bit in range(BITS)]])


def decode_bits(outputs: torch.Tensor) -> str:
    """The text whose bits the signs of ``outputs``, ``(1, 16 * characters)``, spell."""
    codes = (outputs > 0).reshape(-1, BITS).to(torch.int64).cpu() @ (1 << torch.arange(BITS))
    return "".join(map(chr, codes.tolist()))


def encode_code_points(text: str) -> torch.Tensor:
    """Each character as its code point: float32 of shape ``(1, len(text))``."""
    return torch.tensor([[float(ord(character)) for character in text]])


def decode_code_points(outputs: torch.Tensor) -> str:
    """Each output truncated to an integer and taken as a code point.

    Raises:
        ValueError: a code point is negative or beyond Unicode's last, or an output is NaN.
        OverflowError: an output is infinite.
    """
    return "".join(chr(int(value)) for value in outputs.reshape(-1).tolist())
