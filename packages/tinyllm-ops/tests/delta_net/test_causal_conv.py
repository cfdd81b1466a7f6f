from itertools import pairwise

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import NO_STATE, OpSet, StateTable
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle


def chunk(length: int, *, first: bool) -> StateTable:
    """Return the table of one chunk of a text; its first chunk loads no state."""
    return StateTable.of([(NO_STATE if first else 0, length, {length: 0})], num_slots=1)


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("load", [NO_STATE, 1])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_convolves_each_channel_with_the_inputs_before_a_token(
    ops: OpSet, dtype: mx.Dtype, length: int, load: int, kernel: int
) -> None:
    x, weight = normal((length, 10), dtype, seed=1), normal((10, kernel), dtype, seed=2)
    state = normal((3, kernel - 1, 10), dtype, seed=3)
    saves = {n: slot for n, slot in ((length, 2), (length - 1, 0)) if n}
    y, after = ops.causal_conv(
        x, weight, state, StateTable.of([(load, length, saves)], num_slots=3)
    )
    before = np.zeros((kernel - 1, 10)) if load == NO_STATE else exact(state[load])
    expected, states = oracle.causal_conv(exact(x), exact(weight), before)
    assert (y.dtype, after.dtype) == (dtype, dtype)
    assert_close(y, expected)
    for n, slot in saves.items():
        assert np.array_equal(exact(after[slot]), states[n])  # inputs are copied, not rounded
    assert mx.array_equal(after[1], state[1])


def test_the_worked_example_comes_out(ops: OpSet) -> None:
    # One channel, weights 1, 10, 100: the token itself counts 100 times.
    x, weight = mx.array([[1.0], [2.0], [3.0]]), mx.array([[1.0, 10.0, 100.0]])
    y, state = ops.causal_conv(x, weight, mx.zeros((1, 2, 1)), chunk(3, first=True))
    assert y.flatten().tolist() == pytest.approx([100, 210, 321])  # silu of large numbers
    assert state.flatten().tolist() == [2, 3]


@given(
    cuts=st.lists(st.integers(1, 19), max_size=6),
    channels=st.integers(1, 9),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=30)
def test_any_chunks_give_the_bits_of_the_whole_text(
    cuts: list[int], channels: int, opset: OpSet, dtype: mx.Dtype
) -> None:
    x, weight = normal((20, channels), dtype, seed=1), normal((channels, 4), dtype, seed=2)
    empty = mx.zeros((1, 3, channels), dtype)
    whole, end = opset.causal_conv(x, weight, empty, chunk(20, first=True))
    outs, state = [], empty
    for a, b in pairwise(sorted({0, 20, *cuts})):
        states = chunk(b - a, first=a == 0)
        y, state = opset.causal_conv(x[a:b], weight, state, states)
        outs.append(y)
    assert mx.array_equal(mx.concatenate(outs), whole)
    assert mx.array_equal(state, end)


def test_equals_the_convolution_of_mlx(ops: OpSet) -> None:
    x, weight = normal((9, 6), seed=1), normal((6, 4), seed=2)
    padded = mx.pad(x, [(3, 0), (0, 0)])[None]
    expected = mlx.nn.silu(mx.conv1d(padded, weight[:, :, None], groups=6))[0]
    states = chunk(9, first=True)
    assert_close(ops.causal_conv(x, weight, mx.zeros((1, 3, 6)), states)[0], exact(expected))


def test_no_channels_give_none(ops: OpSet) -> None:
    states = StateTable.of([(-1, 2, {2: 0})], num_slots=1)
    y, after = ops.causal_conv(mx.zeros((2, 0)), mx.zeros((0, 4)), mx.zeros((1, 3, 0)), states)
    mx.eval(y, after)
    assert (y.shape, after.shape) == ((2, 0), (1, 3, 0))


def test_no_tokens_change_no_slot(ops: OpSet, dtype: mx.Dtype) -> None:
    state = normal((2, 3, 4), dtype, seed=1)
    x, states = mx.zeros((0, 4), dtype), StateTable.rows(2, 0)
    y, after = ops.causal_conv(x, mx.zeros((4, 4), dtype), state, states)
    assert (y.shape, y.dtype) == ((0, 4), dtype)
    assert mx.array_equal(after, state)


ARGUMENTS = {
    "x": mx.zeros((3, 6)),
    "weight": mx.zeros((6, 4)),
    "slots": mx.zeros((2, 3, 6)),
    "state_table": StateTable.of([(0, 3, {})], num_slots=2),
}


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        ("x", mx.zeros((1, 3, 6)), r"x: expected axes T C, got shape \(1, 3, 6\)"),
        ("x", mx.zeros((4, 6)), "x: expected 3 tokens, as the table has, got 4"),
        ("weight", mx.zeros((5, 4)), r"weight: expected shape \(6, 4\), got \(5, 4\)"),
        ("weight", mx.zeros((6, 1)), "weight: expected at least 2 weights per channel, got 1"),
        ("weight", mx.zeros((6, 4, 1)), "weight: expected axes C K, got shape"),
        ("weight", mx.zeros((6, 4), mx.float16), "weight: expected dtype .*float32, got .*float16"),
        ("slots", mx.zeros((2, 4, 6)), r"slots: expected shape \(2, 3, 6\), got \(2, 4, 6\)"),
        ("slots", mx.zeros((3, 3, 6)), r"slots: expected shape \(2, 3, 6\), got \(3, 3, 6\)"),
        ("slots", mx.zeros((2, 3, 6), mx.float16), "slots: expected dtype .*32, got .*float16"),
    ],
)
def test_refuses_arguments_that_do_not_fit(
    ops: OpSet, unchecked: None, name: str, bad: mx.array, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.causal_conv(**(ARGUMENTS | {name: bad}))  # type: ignore[arg-type]
