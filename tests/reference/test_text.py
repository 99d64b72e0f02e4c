from __future__ import annotations

import pytest
import torch

from amp_checks.reference import text
from amp_checks.reference.recipes import TEXT


def test_bits_are_plus_and_minus_one_lowest_first() -> None:
    encoded = text.encode_bits("A")  # 0x41

    assert encoded.shape == (1, 16)
    assert [bit for bit, value in enumerate(encoded[0].tolist()) if value == 1.0] == [0, 6]
    assert set(encoded[0].tolist()) == {1.0, -1.0}


def test_bits_round_trip_and_survive_16_bit_floats() -> None:
    encoded = text.encode_bits(TEXT)

    assert encoded.shape == (1, 64)
    for dtype in (torch.float16, torch.bfloat16):
        assert text.decode_bits(encoded.to(dtype) * 0.01) == TEXT


def test_a_character_beyond_16_bits_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'😀' has no 16-bit code"):
        text.encode_bits("A😀")


def test_code_points_round_trip_in_float32_and_not_in_float16() -> None:
    encoded = text.encode_code_points(TEXT)

    assert encoded.tolist() == [[20013.0, 37326.0, 21746.0, 24179.0]]
    assert text.decode_code_points(encoded) == TEXT
    assert text.decode_code_points(encoded.half()) != TEXT


def test_a_negative_code_point_raises() -> None:
    with pytest.raises(ValueError, match="chr"):
        text.decode_code_points(torch.tensor([[-3.0]]))
