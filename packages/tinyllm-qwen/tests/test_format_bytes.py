"""Sizes have one decimal, in the largest of three units."""

import pytest
from tinyllm_qwen.format_bytes import format_bytes


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0.0 kB"),
        (12_345, "12.3 kB"),
        (10**6, "1.0 MB"),
        (2_340_000, "2.3 MB"),
        (10**9, "1.0 GB"),
        (16_400_000_000, "16.4 GB"),
    ],
)
def test_a_size_has_one_decimal(nbytes: int, expected: str) -> None:
    assert format_bytes(nbytes) == expected
