"""The ops of gated DeltaNet: convolution, gated delta rule and gated norm."""

from itertools import cycle, pairwise

import mlx.core as mx
import pytest
from tinyllm_ops import NO_STATE, OpSet, StateTable
from tinyllm_ops.testing import (
    TOLERANCE,
    assert_close,
    exact,
    normal,
    oracle,
    scan_sequences,
)

SIZES = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
EACH_SIZE = list(zip(SIZES, cycle(TOLERANCE), strict=False))
CHUNKS = [
    *((3, 1, {1: 3}), (NO_STATE, 5, {5: 0}), (4, 33, {32: 1, 33: 4})),  # a step, a text, a chunk
    *((5, 0, {}), (5, 3, {}), (6, 2, {1: 6, 2: 7})),  # no token, no save, draft tokens
]
TABLE = StateTable.of(CHUNKS, num_slots=9)
TABLES = {
    "mixed": TABLE,
    "in place": StateTable.rows(3, 2),
    "new texts": StateTable.of([(NO_STATE, 34, {34: row}) for row in range(2)], num_slots=2),
    "no saves": StateTable.of([(1, 3, {})], num_slots=2),
    "one token": StateTable.of([(0, 1, {1: 1})], num_slots=2),
    "many sequences": StateTable.of([(i, 1, {1: i}) for i in range(40)], num_slots=41),
}
# Key heads, value heads, Dk, Dv and dtype.
HEADS = [
    (1, 1, 1, 1, mx.float32),
    (2, 2, 32, 4, mx.float16),
    (2, 6, 40, 18, mx.float32),
    (1, 2, 128, 128, mx.bfloat16),
    (1, 1, 256, 17, mx.float32),
]


def check_slots(actual: mx.array, expected: mx.array, table: StateTable) -> None:
    """Require equal bits in the slots that the pass does not save."""
    kept = [slot for slot in range(table.num_slots) if slot not in table.save_slots]
    assert all(mx.array_equal(actual[slot], expected[slot]).item() for slot in kept)


def conv_inputs(
    table: StateTable, channels: int, kernel: int = 4, dtype: mx.Dtype = mx.float32
) -> tuple[mx.array, mx.array, mx.array]:
    shapes = (table.count, channels), (channels, kernel), (table.num_slots, kernel - 1, channels)
    x, weight, state = (normal(shape, dtype, seed=seed) for seed, shape in enumerate(shapes))
    return x, weight, state


def check_conv(
    metal: OpSet, table: StateTable, channels: int, kernel: int = 4, dtype: mx.Dtype = mx.float32
) -> None:
    x, weight, state = conv_inputs(table, channels, kernel, dtype)
    y, slots = metal.causal_conv(x, weight, state, table)
    right, right_slots = scan_sequences(
        table,
        exact(state),
        lambda tokens, before: oracle.causal_conv(exact(x)[tokens], exact(weight), before),
    )
    assert (y.dtype, slots.dtype) == (dtype, dtype)
    assert_close(y, right)
    assert (exact(slots) == right_slots).all()  # inputs are copied


@pytest.mark.parametrize(("channels", "dtype"), EACH_SIZE)
def test_conv_of_any_number_of_channels(metal: OpSet, channels: int, dtype: mx.Dtype) -> None:
    check_conv(metal, TABLE, channels, 4, dtype)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_conv_of_any_sequences(metal: OpSet, table: StateTable) -> None:
    check_conv(metal, table, 40)


@pytest.mark.parametrize("kernel", [2, 3, 7])
def test_conv_of_any_length(metal_checked: OpSet, kernel: int, dtype: mx.Dtype) -> None:
    check_conv(metal_checked, TABLE, 33, kernel, dtype)


# q, k, v, a and b, with a row for each token.
Inputs = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]


def delta_inputs(
    table: StateTable, hk: int, hv: int, dk: int, dv: int, dtype: mx.Dtype = mx.float32
) -> tuple[Inputs, mx.array, mx.array, mx.array]:
    """Return q, k, v, a and b, then a_log, dt_bias and the state. q, k and v have gaps."""
    count = table.count
    wide = normal((count, 2 * hk * dk + hv * dv), dtype, seed=1)
    q, k, v = mx.split(wide, [hk * dk, 2 * hk * dk], axis=-1)
    q, k = (mx.unflatten(x, -1, (hk, dk)) for x in (q, k))
    a, b = (normal((count, hv), dtype, seed=seed) for seed in (2, 3))
    state = normal((table.num_slots, hv, dv, dk), seed=6)
    inputs = q, k, mx.unflatten(v, -1, (hv, dv)), a, b
    return inputs, normal((hv,), seed=4), normal((hv,), dtype, seed=5), state


def part(inputs: Inputs, first: int, end: int) -> Inputs:
    """Return the inputs of some tokens."""
    q, k, v, a, b = (x[first:end] for x in inputs)
    return q, k, v, a, b


def check_delta_of(
    metal: OpSet,
    table: StateTable,
    inputs: Inputs,
    a_log: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> None:
    o, slots = metal.gated_delta(*inputs, a_log, dt_bias, state, table)
    q, k, v, a, b = (exact(x) for x in inputs)
    right, right_slots = scan_sequences(
        table,
        exact(state),
        lambda at, before: oracle.gated_delta(
            q[at], k[at], v[at], a[at], b[at], exact(a_log), exact(dt_bias), before
        ),
    )
    assert (o.dtype, slots.dtype) == (inputs[2].dtype, mx.float32)
    assert_close(o, right)
    assert_close(slots, right_slots)
    check_slots(slots, state, table)


def check_delta(
    metal: OpSet,
    table: StateTable,
    hk: int = 1,
    hv: int = 2,
    dk: int = 24,
    dv: int = 6,
    dtype: mx.Dtype = mx.float32,
) -> None:
    check_delta_of(metal, table, *delta_inputs(table, hk, hv, dk, dv, dtype))


@pytest.mark.parametrize(("hk", "hv", "dk", "dv", "dtype"), HEADS)
def test_delta_of_any_heads(
    metal: OpSet, hk: int, hv: int, dk: int, dv: int, dtype: mx.Dtype
) -> None:
    check_delta(metal, TABLE, hk, hv, dk, dv, dtype)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_delta_of_any_sequences(metal: OpSet, table: StateTable) -> None:
    check_delta(metal, table)


@pytest.mark.parametrize("length", SIZES)
def test_delta_of_texts_of_any_length(metal_checked: OpSet, length: int) -> None:
    check_delta(metal_checked, StateTable.rows(1, length))


def test_gates_at_both_ends_of_float32(metal: OpSet) -> None:
    (q, k, v, _, _), _, _, state = delta_inputs(TABLE, 1, 6, 24, 6)
    a = mx.broadcast_to(mx.array([-200.0, -30.0, -14.0, 30.0, 200.0, -5.0]), (TABLE.count, 6))
    b = mx.broadcast_to(mx.array([200.0, -200.0, 0.0, 30.0, -30.0, 1.0]), a.shape)
    a_log, dt_bias = mx.array([2.7, 20.0, 9.0, -3.0, 2.0, -100.0]), mx.zeros(6)
    check_delta_of(metal, TABLE, (q, k, v, a, b), a_log, dt_bias, state)


def test_a_zero_key_or_query_has_a_zero_direction(metal: OpSet) -> None:
    (q, k, v, a, b), a_log, dt_bias, state = delta_inputs(TABLE, 1, 2, 24, 6)
    o, slots = metal.gated_delta(q * 0, k * 0, v, a, b, a_log, dt_bias, state, TABLE)
    assert not o.any().item()
    assert mx.isfinite(slots).all().item()


def test_chunks_of_a_text_have_the_bits_of_the_text(metal: OpSet) -> None:
    whole = StateTable.of([(0, 70, {70: 1})], num_slots=2)
    inputs, a_log, dt_bias, state = delta_inputs(whole, 1, 2, 40, 6, mx.bfloat16)
    x, weight, conv_state = conv_inputs(whole, 40, dtype=mx.bfloat16)
    together = metal.gated_delta(*inputs, a_log, dt_bias, state, whole)
    conv_together = metal.causal_conv(x, weight, conv_state, whole)
    for start, end in pairwise((0, 1, 3, 34, 66, 70)):
        chunk = StateTable.of([(int(start > 0), end - start, {end - start: 1})], num_slots=2)
        o, state = metal.gated_delta(*part(inputs, start, end), a_log, dt_bias, state, chunk)
        y, conv_state = metal.causal_conv(x[start:end], weight, conv_state, chunk)
        assert mx.array_equal(o, together[0][start:end]).item()
        assert mx.array_equal(y, conv_together[0][start:end]).item()
    assert mx.array_equal(state, together[1]).item()
    assert mx.array_equal(conv_state, conv_together[1]).item()


def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(metal: OpSet) -> None:
    inputs, a_log, dt_bias, state = delta_inputs(TABLE, 1, 2, 40, 6)
    o, slots = metal.gated_delta(*inputs, a_log, dt_bias, state, TABLE)
    for chunk, (first, end) in zip(CHUNKS, pairwise(TABLE.cu_seqlens), strict=True):
        alone = StateTable.of([chunk], num_slots=TABLE.num_slots)
        own, own_slots = metal.gated_delta(*part(inputs, first, end), a_log, dt_bias, state, alone)
        assert mx.array_equal(own, o[first:end]).item()
        for slot in chunk[2].values():
            assert mx.array_equal(own_slots[slot], slots[slot]).item()


def test_the_state_of_the_caller_is_not_changed(metal: OpSet) -> None:
    inputs, a_log, dt_bias, state = delta_inputs(TABLE, 1, 2, 24, 6)
    before = mx.array(state)
    _, slots = metal.gated_delta(*inputs, a_log, dt_bias, state, TABLE)
    mx.eval(slots)
    assert mx.array_equal(state, before).item()


def test_no_tokens_give_no_outputs(metal: OpSet) -> None:
    empty = StateTable.of([(0, 0, {})], num_slots=1)
    inputs, a_log, dt_bias, state = delta_inputs(empty, 1, 2, 24, 6)
    o, slots = metal.gated_delta(*inputs, a_log, dt_bias, state, empty)
    assert o.shape == (0, 2, 6)
    assert mx.array_equal(slots, state).item()
    x, weight, conv_state = conv_inputs(empty, 8)
    y, conv_slots = metal.causal_conv(x, weight, conv_state, empty)
    assert y.shape == (0, 8)
    assert mx.array_equal(conv_slots, conv_state).item()


def check_gated_norm(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    x, gate = (normal((2, 3, width), dtype, seed=seed, magnitude=4.0) for seed in (1, 2))
    weight = normal((width,), dtype, seed=3)
    y = metal.gated_rms_norm(x, gate, weight, 1e-6)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, oracle.gated_rms_norm(exact(x), exact(gate), exact(weight), 1e-6))


@pytest.mark.parametrize(("width", "dtype"), EACH_SIZE)
def test_gated_norm(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    check_gated_norm(metal, dtype, width)


@pytest.mark.parametrize("width", SIZES)
def test_gated_norm_of_any_size_and_dtype(
    metal_checked: OpSet, dtype: mx.Dtype, width: int
) -> None:
    check_gated_norm(metal_checked, dtype, width)


def test_gates_beyond_the_range_of_exp(metal: OpSet) -> None:
    gate = mx.array([[-1e30, -500.0, 0.0, 500.0, 1e30]])
    y = metal.gated_rms_norm(mx.ones((1, 5)), gate, mx.ones(5), 0.0)
    assert_close(
        y, oracle.gated_rms_norm(exact(mx.ones((1, 5))), exact(gate), exact(mx.ones(5)), 0.0)
    )
    assert metal.gated_rms_norm(mx.zeros((0, 8)), mx.zeros((0, 8)), mx.ones(8)).shape == (0, 8)
