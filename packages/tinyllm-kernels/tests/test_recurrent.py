"""The ops of gated DeltaNet: convolution, delta rule and gated norm, with states in slots."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.testing import same_bits
from tinyllm_ops import NO_STATE, OpSet, StateTable
from tinyllm_ops.testing import assert_close, exact, normal, oracle, scan_sequences

SLOTS = 7

TABLE = StateTable.of(
    # A new text, a text that goes on in its slot, and a fork with a save after each of two tokens.
    [(NO_STATE, 37, {5: 1, 37: 0}), (2, 1, {1: 2}), (3, 35, {1: 4, 2: 5, 35: 6})],
    num_slots=SLOTS,
)

SIZES = [
    # key heads, value heads, Dk, Dv, weights per channel
    pytest.param((2, 2, 128, 128, 4), id="128"),
    pytest.param((1, 3, 128, 24, 4), id="three-values"),
    pytest.param((2, 4, 40, 7, 2), id="small"),
    pytest.param((1, 1, 5, 130, 3), id="odd"),
]

Sizes = tuple[int, int, int, int, int]
Arrays = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]


@dataclass
class Inputs:
    """Random inputs of both recurrent ops for all tokens of `TABLE`."""

    q: mx.array
    k: mx.array
    v: mx.array
    a: mx.array
    b: mx.array
    a_log: mx.array
    dt_bias: mx.array
    state: mx.array

    @classmethod
    def random(cls, sizes: Sizes, dtype: mx.Dtype) -> "Inputs":
        """Make the inputs; q, k and v are views of one array, as the layer has them."""
        key_heads, heads, key_dim, value_dim, _ = sizes
        tokens, width = TABLE.count, key_heads * key_dim
        joined = normal((tokens, 2 * width + heads * value_dim), dtype, seed=1)
        q, k, v = mx.split(joined, [width, 2 * width], axis=-1)
        return cls(
            mx.unflatten(q, -1, (key_heads, key_dim)),
            mx.unflatten(k, -1, (key_heads, key_dim)),
            mx.unflatten(v, -1, (heads, value_dim)),
            normal((tokens, heads), dtype, seed=2, magnitude=3.0),
            normal((tokens, heads), dtype, seed=3, magnitude=3.0),
            normal((heads,), seed=4),
            normal((heads,), dtype, seed=5),
            normal((SLOTS, heads, value_dim, key_dim), seed=6),
        )

    def tokens(self, first: int, stop: int) -> Arrays:
        """Return q, k, v, a and b of some tokens."""
        at = slice(first, stop)
        return self.q[at], self.k[at], self.v[at], self.a[at], self.b[at]

    def run(self, ops: OpSet, table: StateTable = TABLE) -> tuple[mx.array, mx.array]:
        return ops.gated_delta(
            *self.tokens(0, table.count), self.a_log, self.dt_bias, self.state, table
        )


@pytest.mark.parametrize("sizes", SIZES)
def test_causal_conv(ops: OpSet, dtype: mx.Dtype, sizes: Sizes) -> None:
    key_heads, heads, key_dim, value_dim, width = sizes
    channels = 2 * key_heads * key_dim + heads * value_dim
    x = normal((TABLE.count, channels), dtype, seed=1)
    weight = normal((channels, width), dtype, seed=2)
    state = normal((SLOTS, width - 1, channels), dtype, seed=3)
    y, after = ops.causal_conv(x, weight, state, TABLE)
    expected, slots = scan_sequences(
        TABLE,
        exact(state),
        lambda at, before: oracle.causal_conv(exact(x)[at], exact(weight), before),
    )
    assert_close(y, expected)
    assert np.array_equal(exact(after), slots)


@pytest.mark.parametrize("width", [2, 4])
def test_all_channels_of_a_convolution_have_the_same_bits(
    ops: OpSet, dtype: mx.Dtype, width: int
) -> None:
    """Channels beyond whole vectors have another loop. Zeros show the sign of its first sum."""
    for x, taps in ((mx.zeros((5, 1), dtype), -1.0), (normal((5, 1), dtype, seed=1), 0.3)):
        weight = mx.full((39, width), taps, dtype)
        state = mx.zeros((1, width - 1, 39), dtype)
        table = StateTable.of([(NO_STATE, 5, {})], num_slots=1)
        y, _ = ops.causal_conv(mx.repeat(x, 39, axis=1), weight, state, table)
        assert same_bits(y, mx.repeat(y[:, :1], 39, axis=1))


@pytest.mark.parametrize("sizes", SIZES)
def test_gated_delta(ops: OpSet, dtype: mx.Dtype, sizes: Sizes) -> None:
    inputs = Inputs.random(sizes, dtype)
    o, after = inputs.run(ops)
    q, k, v, a, b = (exact(x) for x in inputs.tokens(0, TABLE.count))
    gates = exact(inputs.a_log), exact(inputs.dt_bias)
    expected, slots = scan_sequences(
        TABLE,
        exact(inputs.state),
        lambda at, before: oracle.gated_delta(q[at], k[at], v[at], a[at], b[at], *gates, before),
    )
    assert o.dtype == dtype
    assert_close(o, expected)
    assert_close(after, slots)


@pytest.mark.parametrize("width", [1, 7, 16, 33, 128])
def test_gated_rms_norm(ops: OpSet, dtype: mx.Dtype, width: int) -> None:
    x, weight = normal((3, 5, width), dtype, seed=1), normal((width,), dtype, seed=2)
    gate = normal((3, 5, width), dtype, seed=3, magnitude=4.0)
    y = ops.gated_rms_norm(x, gate, weight, 1e-6)
    assert y.dtype == dtype
    assert_close(y, oracle.gated_rms_norm(exact(x), exact(gate), exact(weight), 1e-6))


@pytest.mark.parametrize("sizes", SIZES)
def test_cut_texts_get_the_bits_of_whole_texts(ops: OpSet, dtype: mx.Dtype, sizes: Sizes) -> None:
    """A text in passes of 1, 6 and 30 tokens, beside others or alone, has the same bits."""
    inputs = Inputs.random(sizes, dtype)
    whole, after = inputs.run(ops)
    outputs, state = [], inputs.state
    for first, stop in ((0, 1), (1, 7), (7, 37)):
        load = 0 if first else NO_STATE
        table = StateTable.of([(load, stop - first, {stop - first: 0})], num_slots=SLOTS)
        tokens = inputs.tokens(first, stop)
        part, state = ops.gated_delta(*tokens, inputs.a_log, inputs.dt_bias, state, table)
        outputs.append(part)
    assert same_bits(mx.concatenate(outputs), whole[:37])
    assert same_bits(state[0], after[0])


def test_states_are_written_in_place(ops: OpSet, dtype: mx.Dtype) -> None:
    inputs = Inputs.random((2, 2, 128, 128, 4), dtype)
    channels = 512
    weight = normal((channels, 4), dtype, seed=2)
    conv = normal((SLOTS, 3, channels), dtype, seed=3)
    mx.eval(conv, inputs.state)

    def addresses() -> list[int]:
        mx.eval(conv, inputs.state)
        return [np.array(x.view(mx.uint8), copy=False).ctypes.data for x in (conv, inputs.state)]

    before = addresses()
    for _ in range(3):
        x = normal((TABLE.count, channels), dtype, seed=1)
        y, conv = ops.causal_conv(x, weight, conv, TABLE)
        o, inputs.state = inputs.run(ops)
        mx.eval(y, o)
        assert addresses() == before


def test_states_with_other_holders_are_not_written(ops: OpSet) -> None:
    inputs = Inputs.random((2, 2, 128, 128, 4), mx.float32)
    held = inputs.state
    before = np.array(held)
    _, after = inputs.run(ops)
    mx.eval(after)
    assert np.array_equal(np.array(held), before)
    assert not mx.array_equal(after, held)


def test_a_pass_without_tokens_changes_nothing(ops: OpSet, dtype: mx.Dtype) -> None:
    inputs = Inputs.random((2, 4, 40, 7, 2), dtype)
    table = StateTable.of([(2, 0, {})], num_slots=SLOTS)
    o, state = inputs.run(ops, table)
    assert o.shape == (0, 4, 7)
    assert mx.array_equal(state, inputs.state)


def test_gates_beyond_the_range_of_exp(ops: OpSet) -> None:
    """A decay of 0 forgets the state, and a decay of 1 keeps it."""
    inputs = Inputs.random((1, 2, 128, 8, 4), mx.float32)
    inputs.b = mx.full(inputs.b.shape, -1e30)  # no token is written
    for a, kept in ((1e30, 0.0), (-1e30, 1.0)):
        inputs.a = mx.full(inputs.a.shape, a)
        _, after = inputs.run(ops)
        assert mx.array_equal(after[6], inputs.state[3] * kept)
