"""Several blocks at once are their halves, one after the other, to the last bit."""

from functools import cache
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import Block, OpSet, QuantizedTensor, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, page_table
from tinyllm_ops.testing.blocks import (
    attention_block,
    attention_block_oracle,
    mlp_block,
    mlp_block_oracle,
)

Store = tuple[mx.array, mx.array]
WIDTH, DIM = 64, 32


@cache
def blocks_of(count: int, dtype: mx.Dtype, bits: int | None = 4) -> list[Block]:
    return [
        Block(
            attention_block(WIDTH, 4, 2, DIM, dtype, bits=bits, normed=n % 2 == 0),
            mlp_block(WIDTH, 96, dtype, bits),
        )
        for n in range(count)
    ]


def empty(count: int, dtype: mx.Dtype, rows: int = 1) -> list[Store]:
    shape = (rows, 2, 16, DIM)
    return [(mx.zeros(shape, dtype), mx.zeros(shape, dtype)) for _ in range(count)]


def address(array: mx.array) -> int:
    mx.eval(array)
    return np.array(array.view(mx.uint8), copy=False).ctypes.data


@pytest.mark.parametrize("count", [1, 3, 16])  # of which a primitive takes 14
@pytest.mark.parametrize("edges", [(0, 6), (0, 4, 5, 6)])
def test_they_are_their_halves(
    ops: OpSet, dtype: mx.Dtype, count: int, edges: tuple[int, ...]
) -> None:
    blocks, x = blocks_of(count, dtype), normal((2, 6, WIDTH), dtype, seed=1)
    together, singly = empty(count, dtype, 2), empty(count, dtype, 2)
    for first, last in pairwise(edges):
        y, together = ops.blocks(x[:, first:last], blocks, together, first)
        expected = x[:, first:last]
        for i, block in enumerate(blocks):
            expected, *store = ops.attention_block(expected, block.attention, *singly[i], first)
            singly[i] = (store[0], store[1])
            expected = ops.mlp_block(expected, block.mlp)
        assert mx.array_equal(y, expected)
    for store, other in zip(together, singly, strict=True):
        assert all(mx.array_equal(a, b) for a, b in zip(store, other, strict=True))


def test_they_are_what_float64_says(ops: OpSet, dtype: mx.Dtype) -> None:
    blocks, x = blocks_of(2, dtype), normal((1, 7, WIDTH), dtype, seed=2)
    y, _ = ops.blocks(x, blocks, empty(2, dtype), 0)
    expected = exact(x)
    for block in blocks:
        expected = mlp_block_oracle(attention_block_oracle(expected, block.attention), block.mlp)
    assert_close(y, expected)


def test_keys_and_values_stay_where_they_are(ops: OpSet) -> None:
    blocks, stores = blocks_of(3, mx.bfloat16), empty(3, mx.bfloat16)
    places = [[address(part) for part in store] for store in stores]
    for offset in range(3):
        y, stores = ops.blocks(normal((1, 1, WIDTH), mx.bfloat16, seed=3), blocks, stores, offset)
        mx.eval(y)
    assert [[address(part) for part in store] for store in stores] == places


def test_no_blocks_and_no_tokens(ops: OpSet) -> None:
    x = normal((1, 2, WIDTH), mx.float32, seed=4)
    y, stores = ops.blocks(x, [], [], 0)
    assert (y is x, stores) == (True, [])
    y, stores = ops.blocks(x[:, :0], blocks_of(2, mx.float32), empty(2, mx.float32), 0)
    assert (y.shape, len(stores)) == ((1, 0, WIDTH), 2)


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("requests", [[(1, 5), (1, 17), (1, 1)], [(4, 20), (3, 3)]], ids=str)
def test_in_pages(
    ops: OpSet, dtype: mx.Dtype, requests: list[tuple[int, int]], bits: int | None
) -> None:
    blocks, table = blocks_of(3, dtype), page_table(requests, 16, seed=5)
    tokens = table.tokens(16)
    count = tokens.count
    is_decoded = all(length == 1 for length, _ in requests)
    x = normal((count, 1, WIDTH) if is_decoded else (1, count, WIDTH), dtype, seed=6)

    def pages(seed: int) -> Weight:
        dense = normal((table.pages, 2, 16, DIM), dtype, seed=seed)
        return dense if bits is None else quantize(dense, DIM, bits)

    stores = [(pages(10 + n), pages(20 + n)) for n in range(3)]
    y, written = ops.paged_blocks(x, blocks, stores, tokens)
    for i, block in enumerate(blocks):
        x, *expected = ops.paged_attention_block(x, block.attention, *stores[i], tokens)
        x = ops.mlp_block(x, block.mlp)
        for store, other in zip(written[i], expected, strict=True):
            assert all(
                mx.array_equal(a, b) for a, b in zip(parts(store), parts(other), strict=True)
            )
    assert mx.array_equal(y, x)


def parts(w: Weight) -> tuple[mx.array, ...]:
    return w.arrays if isinstance(w, QuantizedTensor) else (w,)
