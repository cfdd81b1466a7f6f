import mlx.core as mx
import pytest
from tinyllm_ops import Phase, phase_of


@pytest.mark.parametrize(
    ("shape", "few", "phase"),
    [
        ((8,), 0, "decode"),
        ((1, 8), 4, "decode"),
        ((4, 8), 4, "decode"),
        ((5, 8), 4, "prefill"),
        ((1, 8), 0, "prefill"),
        ((3, 1, 8), 0, "decode"),
        ((500, 1, 8), 4, "decode"),
        ((1, 2, 8), 4, "prefill"),
        ((3, 5, 8), 4, "prefill"),
        ((2, 3, 1, 8), 0, "decode"),
        ((2, 1, 3, 8), 4, "prefill"),
    ],
)
def test_rows_of_one_token_and_few_plain_rows_are_decode_steps(
    shape: tuple[int, ...], few: int, phase: Phase
) -> None:
    assert phase_of(mx.zeros(shape), few) == phase
