"""The attention half of a block over pages, as one primitive."""

from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import AttentionBlock, OpSet, PagedTokens, Weight, quantize
from tinyllm_ops.testing import PageTable, assert_close, exact, normal, page_table
from tinyllm_ops.testing.blocks import (
    attention_block,
    attention_inputs_oracle,
    paged_attention_block_oracle,
)

# Queries and keys of each request: a first chunk, a later one, two tokens, one, nothing to do.
CHUNKS = [(37, 37), (20, 290), (2, 33), (1, 9), (0, 7)]
DECODED = [(1, 1), (1, 20), (1, 300), (1, 33)]
WIDTH, HEADS, KV_HEADS, DIM = 96, 6, 2, 32


def block_of(dtype: mx.Dtype, **kind: bool) -> AttentionBlock:
    return attention_block(WIDTH, HEADS, KV_HEADS, DIM, dtype, **kind)


def laid_out(tokens: PagedTokens, dtype: mx.Dtype) -> mx.array:
    """x `T 1 E` if each request has one token, `1 T E` if not."""
    decoded = tokens.count == tokens.context_lengths.size
    return normal((*((tokens.count, 1) if decoded else (1, tokens.count)), WIDTH), dtype, seed=1)


def pages_of(
    count: int, page: int, dtype: mx.Dtype, bits: int | None, group: int = 32
) -> tuple[Weight, Weight]:
    keys, values = (normal((count, KV_HEADS, page, DIM), dtype, seed=seed) for seed in (2, 3))
    if bits is None:
        return keys, values
    return quantize(keys, group, bits), quantize(values, group, bits)


def written(pages: Weight, rows: np.ndarray, tokens: PagedTokens, page: int) -> np.ndarray:
    """Pages in which the heads `B Hkv L D` of all tokens stand at their slots."""
    result = exact(pages)
    flat = rows.swapaxes(1, 2).reshape(-1, KV_HEADS, DIM)
    for row, slot in zip(flat, np.array(tokens.slots), strict=True):
        if slot >= 0:
            result[slot // page, :, slot % page] = row
    return result


@pytest.mark.parametrize(("kind", "bits"), [("biased", None), ("normed", 8), ("normed", 4)])
@pytest.mark.parametrize(("page", "window"), [(1, None), (16, 40), (48, None)])
@pytest.mark.parametrize("requests", [CHUNKS, DECODED], ids=["chunks", "decoded"])
def test_is_one_step_from_norm_to_residual(
    ops: OpSet,
    dtype: mx.Dtype,
    requests: list[tuple[int, int]],
    page: int,
    window: int | None,
    kind: str,
    bits: int | None,
) -> None:
    # Halves with a window add no residual here, the others do.
    block = replace(block_of(dtype, **{kind: True}), residual=window is None)
    table = page_table(requests, page, seed=4)
    tokens = table.tokens(page, window)
    x = laid_out(tokens, dtype)
    before = pages_of(table.pages, page, dtype, bits)
    y, *stored = ops.paged_attention_block(x, block, *before, tokens)
    positions = np.array(tokens.positions).reshape(x.shape[:2])
    _, *made = attention_inputs_oracle(exact(x), block, positions)
    native = ops.attention_inputs(x, block, mx.array(positions))[1:]
    for after, old, heads, seen in zip(stored, before, made, native, strict=True):
        if isinstance(after, mx.array):
            assert_close(after, written(old, heads, tokens, page))
        else:
            codes = exact(quantize(seen, 32, bits or 8))
            assert np.array_equal(exact(after), written(old, codes, tokens, page))
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, paged_attention_block_oracle(exact(x), block, *stored, tokens))


@pytest.mark.parametrize(("bits", "group"), [(8, 32), (4, 32), (8, 64), (4, 128)])
def test_new_rows_get_the_codes_of_mlx(ops: OpSet, dtype: mx.Dtype, bits: int, group: int) -> None:
    """To the last bit, for groups of all kinds: on one side of zero, constant, zero, huge, tiny."""
    block = replace(attention_block(128, 2, 2, 128, dtype), norm=None)
    rows = normal((6, 1, 128), dtype, seed=5)
    rows = mx.concatenate([rows, mx.abs(rows), -mx.abs(rows), rows * 0, rows * 60, rows * 1e-4])
    same = replace(block.v, weight=mx.concatenate([mx.eye(128), -mx.eye(128)]).astype(dtype))
    block = replace(block, v=same)
    count = len(rows)
    tokens = PagedTokens(
        mx.zeros((count, 1), mx.int32),
        mx.arange(count + 1, dtype=mx.int32),
        mx.ones((count,), mx.int32),
        mx.zeros((count,), mx.int32),
        mx.arange(count, dtype=mx.int32),
    )
    pages = [quantize(mx.zeros((3, 2, 16, 128), dtype), group, bits) for _ in range(2)]
    _, _, values = ops.paged_attention_block(rows, block, *pages, tokens)
    v = ops.attention_inputs(rows, block, mx.zeros((count, 1), mx.int32))[2]
    expected = quantize(v[:, :, 0], group, bits)  # T Hkv D
    assert not isinstance(values, mx.array)
    for part, codes in zip(values.arrays, expected.arrays, strict=True):
        flat = part.swapaxes(1, 2).reshape(-1, 2, part.shape[-1])[:count]
        assert mx.array_equal(flat, codes)


@pytest.mark.parametrize("format_", [("affine", 6, 32), ("mxfp8", 8, 32)], ids=str)
def test_other_formats_take_several_steps(
    ops: OpSet, dtype: mx.Dtype, format_: tuple[str, int, int]
) -> None:
    mode, bits, group = format_
    block = block_of(dtype)
    table = page_table(CHUNKS, 16, seed=6)
    tokens = table.tokens(16)
    x = laid_out(tokens, dtype)
    pages = pages_of(table.pages, 16, dtype, None)
    keys, values = (quantize(mx.array(each), group, bits, mode) for each in pages)
    y, *stored = ops.paged_attention_block(x, block, keys, values, tokens)
    assert_close(y, paged_attention_block_oracle(exact(x), block, *stored, tokens))


@pytest.mark.parametrize("bits", [None, 8])
def test_keys_and_values_may_differ_in_kind(ops: OpSet, dtype: mx.Dtype, bits: int | None) -> None:
    block = block_of(dtype)
    table = page_table(CHUNKS, 16, seed=7)
    tokens = table.tokens(16)
    x = laid_out(tokens, dtype)
    keys, values = pages_of(table.pages, 16, dtype, bits)[0], pages_of(table.pages, 16, dtype, 4)[1]
    y, *stored = ops.paged_attention_block(x, block, keys, values, tokens)
    assert_close(y, paged_attention_block_oracle(exact(x), block, *stored, tokens))


@pytest.mark.parametrize("bits", [None, 4])
def test_a_token_may_leave_nothing_behind(ops: OpSet, bits: int | None) -> None:
    block = block_of(mx.float32)
    table = page_table(CHUNKS, 16, seed=8)
    full = table.tokens(16)
    x = laid_out(full, mx.float32)
    before = pages_of(table.pages, 16, mx.float32, bits)
    _, *all_written = ops.paged_attention_block(x, block, *before, full)
    slots = np.array(full.slots)
    slots[5:30] = -1
    slots[40] = table.pages * 16  # a slot that does not exist
    tokens = replace(full, slots=mx.array(slots))
    y, *stored = ops.paged_attention_block(x, block, *before, tokens)
    for after, full_after, old in zip(stored, all_written, before, strict=True):
        expected = exact(full_after)
        for slot in np.array(full.slots)[np.array(tokens.slots) != np.array(full.slots)]:
            expected[slot // 16, :, slot % 16] = exact(old)[slot // 16, :, slot % 16]
        assert np.array_equal(exact(after), expected)
    assert_close(y, paged_attention_block_oracle(exact(x), block, *stored, tokens))


def test_tokens_of_one_text_see_each_other(ops: OpSet, dtype: mx.Dtype) -> None:
    """Three tokens of one text, each a request of its own, are as the one after the other."""
    block = block_of(dtype)
    table = page_table([(3, 300)], 16, seed=9)
    chunk = table.tokens(16)
    x = normal((3, 1, WIDTH), dtype, seed=10)
    pages = pages_of(table.pages, 16, dtype, None)

    def requests(first: int, last: int) -> PagedTokens:
        count = last - first
        return PagedTokens(
            mx.repeat(table.block_table, count, axis=0),
            mx.arange(count + 1, dtype=mx.int32),
            mx.arange(298 + first, 298 + last, dtype=mx.int32),
            chunk.positions[first:last],
            chunk.slots[first:last],
        )

    together, *stored = ops.paged_attention_block(x, block, *pages, requests(0, 3))
    alone = []
    for i in range(3):
        y, *pages = ops.paged_attention_block(x[i : i + 1], block, *pages, requests(i, i + 1))
        alone.append(y)
    assert mx.array_equal(together, mx.concatenate(alone))
    for one, other in zip(stored, pages, strict=True):
        assert mx.array_equal(one, other)


@pytest.mark.parametrize("bits", [None, 8])
def test_a_decoded_token_is_what_it_is_alone(ops: OpSet, dtype: mx.Dtype, bits: int | None) -> None:
    block = block_of(dtype, normed=True)
    table = page_table(DECODED, 16, seed=11)
    tokens = table.tokens(16)
    x = laid_out(tokens, dtype)
    pages = pages_of(table.pages, 16, dtype, bits)
    together, _, _ = ops.paged_attention_block(x, block, *pages, tokens)
    for r, (first, last) in enumerate(pairwise(range(len(DECODED) + 1))):
        mine = PagedTokens(
            table.block_table[r : r + 1],
            mx.array([0, 1], mx.int32),
            table.context_lengths[r : r + 1],
            tokens.positions[first:last],
            tokens.slots[first:last],
        )
        alone, _, _ = ops.paged_attention_block(x[first:last], block, *pages, mine)
        assert mx.array_equal(together[first:last], alone)


@pytest.mark.parametrize("bits", [None, 8])
def test_pages_are_written_where_they_lie_unless_somebody_holds_them(
    ops: OpSet, bits: int | None
) -> None:
    block = block_of(mx.float32)
    table: PageTable = page_table([(1, 3)], 16, seed=12)
    tokens = table.tokens(16)
    x = laid_out(tokens, mx.float32)

    def parts(stored: Weight) -> tuple[mx.array, ...]:
        return (stored,) if isinstance(stored, mx.array) else stored.arrays

    def places(*stored: Weight) -> list[int]:
        mx.eval(*(part for each in stored for part in parts(each)))
        return [np.asarray(memoryview(p)).ctypes.data for each in stored for p in parts(each)]

    keys, values = pages_of(table.pages, 16, mx.float32, bits)
    held, before, where = keys, exact(keys), places(keys, values)
    _, keys, values = ops.paged_attention_block(x, block, keys, values, tokens)
    moved = places(keys, values)
    assert np.array_equal(exact(held), before)
    assert not set(moved[: len(parts(keys))]) & set(where)
    del held
    _, keys, values = ops.paged_attention_block(2 * x, block, keys, values, tokens)
    assert places(keys, values) == moved


def test_no_tokens_change_nothing(ops: OpSet) -> None:
    tokens = page_table([(0, 3)], 16, seed=13).tokens(16)
    pages = mx.ones((4, KV_HEADS, 16, DIM))
    x = mx.zeros((1, 0, WIDTH))
    y, keys, values = ops.paged_attention_block(x, block_of(mx.float32), pages, pages, tokens)
    assert y.shape == (1, 0, WIDTH)
    assert (keys == 1).all().item()
    assert (values == 1).all().item()
