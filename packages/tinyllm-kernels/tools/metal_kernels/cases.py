"""One case for each kernel: calls that reach all of its text, compared with float64."""

import importlib
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from tinyllm_kernels.metal import METAL
from tinyllm_ops import (
    NO_STATE,
    PageTable,
    Phase,
    QuantizedTensor,
    StateTable,
    norm_rope,
    quantize,
)
from tinyllm_ops.testing import assert_close, exact, normal, oracle, page_table, scan_sequences

PHASES: tuple[Phase | None, ...] = (None, "prefill", "decode")


def rms_norm() -> None:
    """Three rows of two simdgroups, with a large eps."""
    x, weight = normal((3, 200), seed=1), normal((200,), seed=2)
    assert_close(METAL.rms_norm(x, weight, 0.5), oracle.rms_norm(exact(x), exact(weight), 0.5))


def gated_rms_norm() -> None:
    """Rows in two groups, with gates beyond the range of exp and a large eps."""
    x, gate, weight = normal((2, 3, 80), seed=1), normal((2, 3, 80), seed=2), normal((80,), seed=3)
    gate[0, 0, :2] = mx.array([-500.0, 500.0])
    expected = oracle.gated_rms_norm(exact(x), exact(gate), exact(weight), 0.5)
    assert_close(METAL.gated_rms_norm(x, gate, weight, 0.5), expected)


def softmax() -> None:
    """Rows around zero and far below it, a row of -inf, and a row with an outlier."""
    x = normal((4, 200), seed=1, magnitude=5.0)
    x[1] -= 200
    x[2] = -mx.inf
    x[3, 1] = 200.0
    assert_close(METAL.softmax(x), oracle.softmax(exact(x)))
    assert_close(METAL.softmax(x[1]), oracle.softmax(exact(x[1])))


def swiglu() -> None:
    """A full group and a partial one, with gates beyond the range of exp."""
    gate, up = normal((300,), seed=1), normal((300,), seed=2)
    gate[:2] = mx.array([-500.0, 500.0])
    assert_close(METAL.swiglu(gate, up), oracle.swiglu(exact(gate), exact(up)))


def embedding() -> None:
    """Codes that cross words, groups of two units, and the last row of the table."""
    w = quantize(normal((7, 320), seed=1), 64, 3)
    ids = np.array([6, 0, 3])
    assert_close(METAL.embedding(mx.array(ids), w), oracle.embedding(ids, exact(w)))


def rope() -> None:
    """Both kinds of pairs at positions of each row, then the norm of each head as well.

    The same for heads of which only the first 20 features are rotated.
    """
    x, where = normal((2, 3, 3, 80), seed=1), np.array([[3, 1, 4], [1, 5, 9]])
    for traditional in (False, True):
        y = METAL.rope(x, mx.array(where), 1e4, traditional)
        assert_close(y, oracle.rope(exact(x), where, 1e4, traditional))
    x, weight = x[:, :, :2], normal((80,), seed=2)
    y = norm_rope(METAL, x, weight, 1e-6, mx.array(where))
    normed = oracle.rms_norm(exact(x), exact(weight), 1e-6)
    assert_close(y, oracle.rope(normed, where).swapaxes(1, 2))
    y = norm_rope(METAL, x, weight, 1e-6, mx.array(where), dims=20)
    assert_close(y, oracle.rope(normed, where, dims=20).swapaxes(1, 2))


def matrix_vector() -> None:
    """Fewer tokens than are unrolled, and more than a group has. No size fills its groups."""
    w = quantize(normal((6, 1088), seed=2), 64, 3)
    for tokens in (3, 11):
        x, residual = normal((tokens, 1, 1088), seed=1), normal((tokens, 1, 6), seed=3)
        y = METAL.linear(x, w, None, residual)
        assert_close(y, exact(residual) + oracle.linear(exact(x), exact(w)))


def matrix_product() -> None:
    """Two by two tiles with edges in one split, then two unequal splits, apart and in one group."""
    grid = importlib.import_module("tinyllm_kernels.metal.linear.matrix_product")
    for shape, group, enough in (((37, 128), 64, 128), ((9, 544), 32, 128), ((9, 544), 32, 1)):
        x, w = normal(shape, seed=1), quantize(normal((35, shape[1]), seed=2), group, 4)
        residual = normal((shape[0], 35), seed=3)
        expected = exact(residual) + oracle.linear(exact(x), exact(w))
        with patch.object(grid, "ENOUGH_GROUPS", enough):
            assert_close(METAL.linear(x, w, None, residual, phase="prefill"), expected)


def expert_linear() -> None:
    """Rows of three experts out of five, as decode steps."""
    _multiply_experts([1, 1, 2, 4], outputs=6, phase="decode")


def expert_prefill() -> None:
    """Runs of experts in two tiles of rows, one run across both, and two tiles of outputs."""
    _multiply_experts([0, *[1] * 4, *[3] * 30, 4, 4], outputs=35, phase="prefill")


def _multiply_experts(experts: list[int], *, outputs: int, phase: Phase) -> None:
    x = normal((len(experts), 64), seed=1)
    w = quantize(normal((5, outputs, 64), seed=2), 32)
    y = METAL.expert_linear(x, w, mx.array(experts), phase=phase)
    assert_close(y, oracle.expert_linear(exact(x), exact(w), np.array(experts)))


def decode() -> None:
    """Nine heads of a group in two tiles, with two splits of the keys, then one split.

    The queries are the last of three tokens. The last keys have scores far from the others. Heads
    of 256 are in three tiles.
    """
    _attend(*(normal((1, heads, 1, 256), seed=heads) for heads in (9, 1, 1)))
    q = normal((2, 3, 18, 80), seed=1).swapaxes(1, 2)[:, :, 2:]
    for keys in (300, 33):
        k, v = (normal((2, 2, keys, 80), seed=seed) for seed in (2, 3))
        k[:, :, -5:] *= 100
        _attend(q, k, v)


def _attend(q: mx.array, k: mx.array, v: mx.array, mask: str | None = None) -> None:
    y = METAL.attention(q, k, v, None, mask)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, mask))


def tiles() -> None:
    """Rows of three heads in two tiles, the second one partial, with many or few keys.

    Keys of 256 numbers pass through the tile in two halves.
    """
    for length, keys in ((13, 45), (13, 11)):
        q = normal((2, 6, length, 80), seed=1)
        k, v = (normal((2, 2, keys, 80), seed=seed) for seed in (2, 3))
        _attend(q, k, v, "causal")
    _attend(*(normal((1, 1, 3, 256), seed=seed) for seed in (1, 2, 3)), "causal")


def packed_keys() -> None:
    """Codes of two widths in groups of two sizes, by both kernels, dense and in pages."""
    q = normal((2, 6, 5, 64), seed=1)
    k, v = _packed(*(normal((2, 2, 45, 64), seed=seed) for seed in (2, 3)))
    for queries in (q, q[:, :, -1:]):
        y = METAL.attention(queries, k, v, None, "causal")
        assert_close(y, oracle.attention(exact(queries), exact(k), exact(v), None, "causal"))
    for phase in PHASES:
        _attend_pages(page_table([(1, 20), (13, 45)], 8, seed=1), None, phase, packed=True)


def _packed(k: mx.array, v: mx.array) -> tuple[QuantizedTensor, QuantizedTensor]:
    return quantize(k, 32, 3), quantize(v, 64, 4)


def paged_attention() -> None:
    """Sequences of all kinds in both phases and without one, with and without a window."""
    table = page_table([(1, 300), (13, 45), (0, 9), (2, 7), (1, 1), (1, 40)], 8, seed=1)
    for window in (None, 20):
        for phase in PHASES:
            _attend_pages(table, window, phase)


def sequences() -> None:
    """More sequences than a simdgroup has lanes, tiles of one query among them."""
    table = page_table([(1, 3), (3, 5)] * 20, 8, seed=1)
    _attend_pages(table, None, None)
    _attend_pages(table, None, "prefill")


def _attend_pages(
    table: PageTable, window: int | None, phase: Phase | None, *, packed: bool = False
) -> None:
    q = normal((table.count, 6, 64), seed=1)
    dense = [normal((table.num_pages, 2, 8, 64), seed=seed) for seed in (2, 3)]
    k, v = _packed(*dense) if packed else dense
    y = METAL.paged_attention(q, k, v, table, window=window, phase=phase)
    arrays = (table.arrays.block_tables, table.arrays.cu_seqlens_q, table.arrays.seq_lens)
    numbers = (np.array(x) for x in arrays)
    expected = oracle.paged_attention(exact(q), exact(k), exact(v), *numbers, None, window)
    assert_close(y, expected)


def _states() -> StateTable:
    """A decode step in place, a prompt with a snapshot, and a chunk without a state to save."""
    return StateTable.of([(5, 1, {1: 5}), (NO_STATE, 35, {3: 0, 35: 2}), (4, 2, {})], num_slots=6)


def causal_conv() -> None:
    """Sequences of all kinds, more channels than a group has threads, and sums beyond exp."""
    table = _states()
    x, weight = normal((table.count, 300), seed=1), normal((300, 4), seed=2)
    state = normal((table.num_slots, 3, 300), seed=3)
    x[:, 0] *= 1000
    expected = scan_sequences(
        table,
        exact(state),
        lambda tokens, before: oracle.causal_conv(exact(x)[tokens], exact(weight), before),
    )
    for y, right in zip(METAL.causal_conv(x, weight, state, table), expected, strict=True):
        assert_close(y, right)


def gated_delta() -> None:
    """Sequences of all kinds, with heads that fill neither the lanes nor the rows of a simdgroup.

    One query and one key are zeros. The last two heads have fast decays with tiny or huge steps.
    """
    table = _states()
    count, slots = table.count, table.num_slots
    q, k = (normal((count, 2, 40), seed=seed) for seed in (1, 2))
    v, a, b = normal((count, 4, 18), seed=3), normal((count, 4), seed=4), normal((count, 4), seed=5)
    a_log, dt_bias, state = (
        normal((4,), seed=6),
        normal((4,), seed=7),
        normal((slots, 4, 18, 40), seed=8),
    )
    q[3, 0], k[4, 0] = 0.0, 0.0
    a_log[2:] = 9.0
    a[:, 2], a[:, 3], a[::2, 0] = -14.0, -30.0, 100.0
    expected = scan_sequences(
        table,
        exact(state),
        lambda at, before: oracle.gated_delta(
            *(exact(q)[at], exact(k)[at], exact(v)[at], exact(a)[at], exact(b)[at]),
            *(exact(a_log), exact(dt_bias), before),
        ),
    )
    got = METAL.gated_delta(q, k, v, a, b, a_log, dt_bias, state, table)
    for y, right in zip(got, expected, strict=True):
        assert_close(y, right)


CASES = {
    case.__name__: case
    for case in (
        rms_norm,
        gated_rms_norm,
        softmax,
        swiglu,
        embedding,
        rope,
        matrix_vector,
        matrix_product,
        expert_linear,
        expert_prefill,
        decode,
        tiles,
        packed_keys,
        paged_attention,
        sequences,
        causal_conv,
        gated_delta,
    )
}
