"""For each kernel a call that reaches all of its text, compared with float64."""

from __future__ import annotations

import importlib
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from tinyllm_kernels.metal import METAL
from tinyllm_kernels.metal.linear import add_linear
from tinyllm_ops import QuantizedTensor, Rotary, quantize
from tinyllm_ops.testing import PageTable, assert_close, exact, normal, oracle, page_table
from tinyllm_ops.testing.blocks import attention_block, attention_inputs_oracle


def rms_norm() -> None:
    """Three rows of two simdgroups, with an eps that counts."""
    x, weight = normal((3, 200), seed=1), normal((200,), seed=2)
    assert_close(METAL.rms_norm(x, weight, 0.5), oracle.rms_norm(exact(x), exact(weight), 0.5))


def softmax() -> None:
    """Rows around zero and far below it, one that sees nothing, one with an outlier."""
    x = normal((4, 200), seed=1, magnitude=5.0)
    x[1] -= 200
    x[2] = -mx.inf
    x[3, 1] = 200.0
    assert_close(METAL.softmax(x), oracle.softmax(exact(x)))
    assert_close(METAL.softmax(x[1]), oracle.softmax(exact(x[1])))


def swiglu() -> None:
    """A group and a part of one; gates beyond the range of exp."""
    gate, up = normal((300,), seed=1), normal((300,), seed=2)
    gate[:2] = mx.array([-500.0, 500.0])
    assert_close(METAL.swiglu(gate, up), oracle.swiglu(exact(gate), exact(up)))


def embedding() -> None:
    """Codes across words, groups of more than a unit, the last row of the table."""
    w = quantize(normal((7, 320), seed=1), 64, 3)
    ids = np.array([6, 0, 3])
    assert_close(METAL.embedding(mx.array(ids), w), oracle.embedding(ids, exact(w)))


def rope() -> None:
    """Both kinds of pairs, rows with positions of their own; then heads with their norm."""
    x, where = normal((2, 3, 3, 80), seed=1), np.array([[3, 1, 4], [1, 5, 9]])
    for traditional in (False, True):
        y = METAL.rope(x, mx.array(where), 1e4, traditional)
        assert_close(y, oracle.rope(exact(x), where, 1e4, traditional))
    block = attention_block(64, 3, 1, 40, mx.float32, normed=True, rotary=Rotary(1e4))
    x = normal((2, 3, 64), seed=2)
    made = METAL.attention_inputs(x, block, mx.array(where))
    for part, expected in zip(made, attention_inputs_oracle(exact(x), block, where), strict=True):
        assert_close(part, expected)


def matrix_vector() -> None:
    """Tokens fewer than are unrolled and more than a group's, two simdgroups, rests throughout."""
    w = quantize(normal((6, 1088), seed=2), 64, 3)
    for tokens in (3, 11):
        x, residual = normal((tokens, 1, 1088), seed=1), normal((tokens, 1, 6), seed=3)
        assert_close(
            add_linear(residual, x, w), exact(residual) + oracle.linear(exact(x), exact(w))
        )


def matrix_product() -> None:
    """Two tiles by two with edges, in one part; two unequal parts apart, and in one group."""
    grid = importlib.import_module("tinyllm_kernels.metal.linear.matrix_product")
    for shape, group, enough in (((37, 128), 64, 128), ((9, 544), 32, 128), ((9, 544), 32, 1)):
        x, w = normal(shape, seed=1), quantize(normal((35, shape[1]), seed=2), group, 4)
        residual = normal((shape[0], 35), seed=3)
        expected = exact(residual) + oracle.linear(exact(x), exact(w))
        with patch.object(grid, "ENOUGH_GROUPS", enough):
            assert_close(add_linear(residual, x, w), expected)


def expert_linear() -> None:
    """Rows of three experts out of five."""
    x, w = normal((4, 64), seed=1), quantize(normal((5, 6, 64), seed=2), 32)
    experts = np.array([1, 1, 2, 4])
    y = METAL.expert_linear(x, w, mx.array(experts))
    assert_close(y, oracle.expert_linear(exact(x), exact(w), experts))


def decode() -> None:
    """Nine heads of a group, eight of them together, and two parts of the keys; then one part.

    The queries are the last of three tokens, and the last keys have scores far from the others.
    """
    q = normal((2, 3, 18, 80), seed=1).swapaxes(1, 2)[:, :, 2:]
    for keys in (300, 33):
        k, v = (normal((2, 2, keys, 80), seed=seed) for seed in (2, 3))
        k[:, :, -5:] *= 100
        assert_close(METAL.attention(q, k, v), oracle.attention(exact(q), exact(k), exact(v)))


def tiles() -> None:
    """Rows of three heads in two tiles, the second one with a rest; keys with a rest, or few."""
    for length, keys in ((13, 45), (13, 11)):
        q = normal((2, 6, length, 80), seed=1)
        k, v = (normal((2, 2, keys, 80), seed=seed) for seed in (2, 3))
        y = METAL.attention(q, k, v, None, "causal")
        assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, "causal"))


def packed_keys() -> None:
    """Codes of two widths, in groups of two sizes, by both kernels: in one piece and in pages."""
    q = normal((2, 6, 5, 64), seed=1)
    k, v = _packed(*(normal((2, 2, 45, 64), seed=seed) for seed in (2, 3)))
    for queries in (q, q[:, :, -1:]):
        y = METAL.attention(queries, k, v, None, "causal")
        assert_close(y, oracle.attention(exact(queries), exact(k), exact(v), None, "causal"))
    _attend_pages(page_table([(1, 20), (13, 45)], 8, seed=1), None, packed=True)


def _packed(k: mx.array, v: mx.array) -> tuple[QuantizedTensor, QuantizedTensor]:
    return quantize(k, 32, 3), quantize(v, 64, 4)


def paged_attention() -> None:
    """Requests of all kinds and tokens that are nobody's, with and without a window."""
    table = page_table([(1, 300), (13, 45), (0, 9), (2, 7), (1, 1), (1, 40)], 8, seed=1)
    for window in (None, 20):
        _attend_pages(table, window)


def requests() -> None:
    """More requests than a simdgroup has lanes."""
    _attend_pages(page_table([(1, 3), (3, 5)] * 20, 8, seed=1), None)


def _attend_pages(table: PageTable, window: int | None, *, packed: bool = False) -> None:
    tokens = int(table.query_starts[-1].item())
    q = normal((tokens + 2, 6, 64), seed=1)  # the last two are nobody's
    dense = [normal((table.pages, 2, 8, 64), seed=seed) for seed in (2, 3)]
    k, v = _packed(*dense) if packed else dense
    y = METAL.paged_attention(q, k, v, *table.arrays, window=window)
    where = (np.array(x) for x in table.arrays)
    expected = oracle.paged_attention(exact(q), exact(k), exact(v), *where, None, window)
    assert_close(y, expected)


CASES = {
    case.__name__: case
    for case in (
        rms_norm,
        softmax,
        swiglu,
        embedding,
        rope,
        matrix_vector,
        matrix_product,
        expert_linear,
        decode,
        tiles,
        packed_keys,
        paged_attention,
        requests,
    )
}
