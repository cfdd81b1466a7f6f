import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers.cache.dense import STEP, TokenBuffer
from tinyllm_ops.testing import assert_close, exact, normal


@pytest.mark.parametrize("lengths", [[3, 1, 0, 4], [STEP - 1, 1, 1], [STEP + 1, STEP], [0, 5]])
def test_holds_what_was_appended_in_order(dtype: mx.Dtype, lengths: list[int]) -> None:
    buffer = TokenBuffer()
    parts = [normal((2, n, 3), dtype, seed=i) for i, n in enumerate(lengths)]
    for part in parts:
        buffer.append(part)
    assert buffer.length == sum(lengths)
    assert buffer.filled.dtype == dtype
    assert_close(buffer.filled, np.concatenate([exact(part) for part in parts], axis=1))


def test_room_grows_by_whole_steps() -> None:
    buffer = TokenBuffer()
    sizes = []
    for _ in range(2 * STEP + 1):
        buffer.append(mx.zeros((1, 1, 2)))
        sizes.append(buffer.arrays[0].shape[1])
    assert sizes == [STEP] * STEP + [2 * STEP] * STEP + [3 * STEP]


def test_a_long_buffer_grows_by_a_quarter() -> None:
    buffer = TokenBuffer()
    buffer.append(mx.zeros((1, 16 * STEP, 2)))
    buffer.append(mx.zeros((1, 1, 2)))
    assert buffer.arrays[0].shape[1] == 20 * STEP


def test_an_expected_length_gets_its_capacity_at_once() -> None:
    buffer = TokenBuffer()
    buffer.expected = 3 * STEP + 1
    sizes = []
    for _ in range(4):
        buffer.append(mx.zeros((1, STEP, 2)))
        sizes.append(buffer.arrays[0].shape[1])
    assert sizes == [4 * STEP] * 4


def test_trimmed_tokens_are_overwritten() -> None:
    buffer = TokenBuffer()
    first, second = normal((1, 5, 2), seed=1), normal((1, 2, 2), seed=2)
    buffer.append(first)
    buffer.trim(3)
    buffer.append(second)
    assert_close(buffer.filled, np.concatenate([exact(first)[:, :3], exact(second)], axis=1))


def test_an_empty_buffer_cannot_be_read() -> None:
    assert TokenBuffer().arrays == []
    with pytest.raises(ValueError, match="the buffer is empty: append to it before reading it"):
        _ = TokenBuffer().filled


@pytest.mark.parametrize("length", [-1, 4])
def test_trims_to_no_more_than_it_has(length: int) -> None:
    buffer = TokenBuffer()
    buffer.append(mx.zeros((1, 3, 2)))
    with pytest.raises(ValueError, match=f"length: expected 0 to 3, got {length}"):
        buffer.trim(length)
    assert buffer.length == 3


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (mx.zeros((1, 1, 4)), r"x: expected shape \(2, 1, 4\), got \(1, 1, 4\)"),
        (mx.zeros((2, 1, 1)), r"x: expected shape \(2, 1, 4\), got \(2, 1, 1\)"),
        (mx.zeros((2, 1, 4), mx.float16), r"x: expected dtype .*float32, got .*float16"),
    ],
)
def test_appended_tokens_are_neither_broadcast_nor_cast(
    unchecked: None, x: mx.array, words: str
) -> None:
    buffer = TokenBuffer()
    buffer.append(mx.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=words):
        buffer.append(x)
    assert buffer.length == 3
