import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from tinyllm_layers import RoPE
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact, normal, oracle

OFFSETS = [
    (None, np.arange(5)),
    (slice(None), np.arange(5)),
    (slice(7, 12), np.arange(7, 12)),
    (slice(7, None), np.arange(7, 12)),
    ([slice(0, 5), slice(9, 14), slice(3, 8)], np.arange(5) + np.array([[0], [9], [3]])),
]


@pytest.mark.parametrize(("offset", "positions"), OFFSETS)
@pytest.mark.parametrize("traditional", [False, True])
def test_turns_each_token_to_its_position(
    ops: OpSet,
    dtype: mx.Dtype,
    offset: slice | list[slice] | None,
    positions: np.ndarray,
    traditional: bool,
) -> None:
    x = normal((3, 5, 2, 10), dtype, seed=1)
    y = RoPE(10, 14, 500.0, traditional, ops=ops)(x, offset)
    assert y.dtype == dtype
    assert_close(y, oracle.rope(exact(x), positions, 500.0, traditional))


@pytest.mark.parametrize("positions", [[4, 0, 9, 1, 2], [[4, 0, 9, 1, 2]] * 5])
def test_an_array_holds_the_position_of_each_token(ops: OpSet, positions: list[int]) -> None:
    x = normal((5, 5, 2, 10), seed=1)
    y = RoPE(10, 14, 500.0, ops=ops)(x, mx.array(positions))
    assert_close(y, oracle.rope(exact(x), np.array(positions), 500.0))


def test_no_rows_give_an_empty_result(ops: OpSet) -> None:
    assert RoPE(8, 4, ops=ops)(mx.zeros((0, 2, 3, 8)), []).shape == (0, 2, 3, 8)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("offset", [0, 90])
def test_equals_mlx_nn(ops: OpSet, traditional: bool, offset: int) -> None:
    x = normal((2, 7, 3, 16), seed=1)
    theirs = mlx.nn.RoPE(16, traditional=traditional)(x.swapaxes(1, 2), offset=offset)
    ours = RoPE(16, 100, traditional=traditional, ops=ops)(x, slice(offset, offset + 7))
    assert_close(ours, exact(theirs.swapaxes(1, 2)))


def test_no_tokens_give_an_empty_result(ops: OpSet) -> None:
    assert RoPE(8, 4, ops=ops)(mx.zeros((2, 0, 3, 8))).shape == (2, 0, 3, 8)


@pytest.mark.parametrize("dims", [7, 1])
def test_refuses_features_that_do_not_pair(dims: int) -> None:
    with pytest.raises(ValueError, match=f"dims: expected an even number to pair, got {dims}"):
        RoPE(dims, 10)


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (slice(7, 11), r"positions: expected numbers below 10, the longest text, got 7\.\.10"),
        (slice(7, None), r"positions: expected numbers below 10, the longest text, got 7\.\.10"),
        (
            [slice(0, 4), slice(8, 12)],
            r"positions: expected numbers below 10, the longest text, got 8\.\.11",
        ),
        (slice(0, 5), r"positions: expected a slice of 4 positions, got slice\(0, 5, None\)"),
        (slice(-1, 3), r"positions: expected a slice of 4 positions, got slice\(-1, 3, None\)"),
        ([slice(0, 4)], r"offset: expected 2 slices, one per row, got 1"),
    ],
)
def test_refuses_positions_that_do_not_fit(
    ops: OpSet, offset: slice | list[slice], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        RoPE(8, 10, ops=ops)(mx.zeros((2, 4, 3, 8)), offset)


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (3, "positions: expected a slice or an integer array, got 3"),
        ([3, 4], "positions: expected a slice or an integer array, got 3"),
        (mx.zeros((4,)), "positions: expected an integer dtype, got .*float32"),
        (mx.array([1, 2]), r"positions: expected shape \(4,\) or \(2, 4\), got \(2,\)"),
    ],
)
def test_refuses_values_that_are_no_positions(
    ops: OpSet, unchecked: None, offset: object, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        RoPE(8, 10, ops=ops)(mx.zeros((2, 4, 3, 8)), offset)  # type: ignore[arg-type]


def test_rotates_the_first_features_of_a_longer_head(ops: OpSet) -> None:
    x = normal((2, 4, 3, 20), seed=1)
    y = RoPE(8, 10, 500.0, ops=ops)(x, slice(2, 6))
    assert_close(y, oracle.rope(exact(x), np.arange(2, 6), 500.0, dims=8))


def test_refuses_heads_with_fewer_features(ops: OpSet) -> None:
    words = r"x: expected at least 8 features per head, got shape \(1, 2, 3, 6\)"
    with pytest.raises(ValueError, match=words):
        RoPE(8, 10, ops=ops)(mx.zeros((1, 2, 3, 6)))
