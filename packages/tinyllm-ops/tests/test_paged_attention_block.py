from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, PagedTokens, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, page_table
from tinyllm_ops.testing.blocks import (
    attention_block,
    attention_inputs_oracle,
    paged_attention_block_oracle,
)

# Queries and keys of each request: a first chunk, a later one, one token, nothing to do.
CHUNKS = [(5, 5), (3, 20), (1, 9), (0, 7)]
DECODED = [(1, 1), (1, 20), (1, 33)]
PAGE = 8


def laid_out(tokens: PagedTokens, width: int, dtype: mx.Dtype) -> mx.array:
    """x `T 1 E` if each request has one token, `1 T E` if not."""
    decoded = tokens.count == tokens.context_lengths.size
    lead = (tokens.count, 1) if decoded else (1, tokens.count)
    return normal((*lead, width), dtype, seed=1)


def written(pages: np.ndarray, heads: np.ndarray, tokens: PagedTokens) -> np.ndarray:
    """Pages in which the heads `B Hkv L D` of all tokens stand at their slots."""
    pages = pages.copy()
    rows = heads.swapaxes(1, 2).reshape(-1, *pages.shape[1::2])
    for row, slot in zip(rows, np.array(tokens.slots), strict=True):
        if slot >= 0:
            pages[slot // PAGE, :, slot % PAGE] = row
    return pages


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", [{"biased": True}, {"normed": True}], ids=str)
@pytest.mark.parametrize("requests", [CHUNKS, DECODED], ids=["chunks", "decoded"])
def test_tokens_of_many_requests_from_norm_to_residual(
    ops: OpSet,
    dtype: mx.Dtype,
    requests: list[tuple[int, int]],
    kind: dict[str, bool],
    window: int | None,
) -> None:
    # Halves with a window add no residual here, the others do.
    block = replace(attention_block(48, 6, 2, 10, dtype, **kind), residual=window is None)
    table = page_table(requests, PAGE, seed=2)
    tokens = table.tokens(PAGE, window)
    x = laid_out(tokens, 48, dtype)
    before = [normal((table.pages, 2, PAGE, 10), dtype, seed=seed) for seed in (3, 4)]
    y, keys, values = ops.paged_attention_block(x, block, *before, tokens)
    positions = np.array(tokens.positions).reshape(x.shape[:2])
    _, *made = attention_inputs_oracle(exact(x), block, positions)
    for stored, old, heads in zip((keys, values), before, made, strict=True):
        assert_close(stored, written(exact(old), heads, tokens))
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, paged_attention_block_oracle(exact(x), block, keys, values, tokens))


@pytest.mark.parametrize("bits", [8, 4])
def test_new_keys_are_packed_as_the_others_are(ops: OpSet, dtype: mx.Dtype, bits: int) -> None:
    block = attention_block(48, 4, 2, 32, dtype)
    table = page_table(CHUNKS, PAGE, seed=5)
    tokens = table.tokens(PAGE)
    x = laid_out(tokens, 48, dtype)
    shape = (table.pages, 2, PAGE, 32)
    keys, values = (quantize(normal(shape, dtype, seed=seed), 32, bits) for seed in (6, 7))
    y, *stored = ops.paged_attention_block(x, block, keys, values, tokens)
    _, *made = ops.attention_inputs(x, block, tokens.positions)
    for pages, old, heads in zip(stored, (keys, values), made, strict=True):
        packed = ops.quantize(heads, 32, bits)
        assert np.array_equal(exact(pages), written(exact(old), exact(packed), tokens))
    assert_close(y, paged_attention_block_oracle(exact(x), block, *stored, tokens))


def test_a_token_may_leave_nothing_behind(ops: OpSet) -> None:
    block = attention_block(48, 4, 2, 16, mx.float32)
    table = page_table(CHUNKS, PAGE, seed=8)
    full = table.tokens(PAGE)
    x = laid_out(full, 48, mx.float32)
    before = [normal((table.pages, 2, PAGE, 16), seed=seed) for seed in (9, 10)]
    for nowhere in (slice(2, 4), slice(None)):
        slots = mx.array(np.array(full.slots))
        slots[nowhere] = -1
        tokens = replace(full, slots=slots)
        y, *stored = ops.paged_attention_block(x, block, *before, tokens)
        _, *made = attention_inputs_oracle(exact(x), block, np.array(full.positions)[None])
        for pages, old, heads in zip(stored, before, made, strict=True):
            assert_close(pages, written(exact(old), heads, tokens))
        assert_close(y, paged_attention_block_oracle(exact(x), block, *stored, tokens))


def test_tokens_of_one_text_see_each_other(ops: OpSet, dtype: mx.Dtype) -> None:
    """Three tokens of one text, each a request of its own, are as one chunk of three."""
    block = attention_block(48, 4, 2, 16, dtype)
    table = page_table([(3, 20)], PAGE, seed=11)
    chunk = table.tokens(PAGE)
    x = laid_out(chunk, 48, dtype)
    pages = [normal((table.pages, 2, PAGE, 16), dtype, seed=seed) for seed in (12, 13)]
    decoded = PagedTokens(
        mx.repeat(table.block_table, 3, axis=0),
        mx.arange(4, dtype=mx.int32),
        mx.array([18, 19, 20], mx.int32),
        chunk.positions,
        chunk.slots,
    )
    y, keys, values = ops.paged_attention_block(x.swapaxes(0, 1), block, *pages, decoded)
    expected = paged_attention_block_oracle(exact(x), block, keys, values, chunk)
    assert_close(y.swapaxes(0, 1), expected)


def test_pages_are_written_where_they_lie_unless_somebody_holds_them(ops: OpSet) -> None:
    block = attention_block(48, 4, 2, 16, mx.float32)
    table = page_table([(1, 3)], PAGE, seed=14)
    tokens = table.tokens(PAGE)
    x = laid_out(tokens, 48, mx.float32)
    keys: Weight = mx.ones((table.pages, 2, PAGE, 16))
    values: Weight = mx.ones((table.pages, 2, PAGE, 16))
    mx.eval(x, keys, values)
    held = keys
    _, keys, values = ops.paged_attention_block(x, block, keys, values, tokens)
    mx.eval(keys, values)
    assert (held == 1).all().item()
    assert not (keys == 1).all().item()


def test_no_tokens_change_nothing(ops: OpSet) -> None:
    block = attention_block(48, 4, 2, 16, mx.float32)
    tokens = page_table([(0, 3)], PAGE, seed=15).tokens(PAGE)
    pages = mx.ones((4, 2, PAGE, 16))
    y, keys, values = ops.paged_attention_block(mx.zeros((1, 0, 48)), block, pages, pages, tokens)
    assert y.shape == (1, 0, 48)
    assert (keys == 1).all().item()
    assert (values == 1).all().item()


X, KV = mx.zeros((1, 3, 48)), mx.zeros((5, 2, 4, 16))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": X[0]}, r"x: expected axes B L E, got shape \(3, 48\)"),
        ({"x": X[:, :2]}, r"x: expected shape \(1, 3, 48\) or \(3, 1, 48\), got \(1, 2, 48\)"),
        ({"keys": KV[0]}, r"keys: expected axes P Hkv page D, got shape \(2, 4, 16\)"),
        ({"keys": KV[:, :1]}, r"keys: expected shape \(5, 2, 4, 16\), got \(5, 1, 4, 16\)"),
        ({"values": KV[:4]}, r"values: expected shape \(5, 2, 4, 16\), got \(4, 2, 4, 16\)"),
        ({"values": KV.astype(mx.float16)}, r"values: expected dtype .*float32, got .*float16"),
    ],
)
def test_refuses_what_does_not_fit(
    ops: OpSet, unchecked: None, change: dict[str, mx.array], words: str
) -> None:
    tokens = page_table([(3, 3)], 4, seed=16).tokens(4)
    fitting = {"x": X, "keys": KV, "values": KV}
    block = attention_block(48, 4, 2, 16, mx.float32)
    with pytest.raises(ValueError, match=words):
        ops.paged_attention_block(block=block, pages=tokens, **fitting | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slots": mx.zeros((2,), mx.int32)}, r"slots: expected shape \(3,\), got \(2,\)"),
        ({"positions": mx.zeros((3,))}, r"positions: expected dtype .*int32, got .*float32"),
        ({"query_starts": mx.zeros((3,), mx.int32)}, r"query_starts: expected shape \(2,\), got"),
    ],
)
def test_refuses_arrays_of_different_tokens(
    unchecked: None, change: dict[str, mx.array], words: str
) -> None:
    tokens = page_table([(3, 3)], 4, seed=16).tokens(4)
    with pytest.raises(ValueError, match=words):
        replace(tokens, **change)
