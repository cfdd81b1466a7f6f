"""Native writes to pages: slots, codes, and sequences that share pages."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.testing import (
    NUM_PAGES,
    PAGE_SIZE,
    LayerShape,
    make_caches,
    make_input,
    make_layers,
    make_table,
    same_bits,
)
from tinyllm_layers import Backend, Batch, LayerStack, PagedCache, make_stack
from tinyllm_layers.testing import attention_of
from tinyllm_ops import PageTable, QuantizedTensor, Weight, quantize
from tinyllm_ops.testing import exact, normal


@pytest.mark.parametrize("keys", [None, 4])
@pytest.mark.parametrize("values", [None, 8])
def test_keys_and_values_may_differ_in_format(
    ops: Backend, dtype: mx.Dtype, keys: int | None, values: int | None
) -> None:
    shape = LayerShape()
    layers = make_layers(shape, 1, dtype, ops)
    batch = Batch.paged(make_table(((7, 2), 0, 7), ((4, 0), 0, 5)), "prefill")
    x = make_input(batch, shape.width, dtype, seed=1)

    def pages(bits: int | None) -> Weight:
        empty = mx.zeros((NUM_PAGES, shape.kv_heads, PAGE_SIZE, shape.head_dim), dtype)
        return empty if bits is None else quantize(empty, 32, bits)

    caches = [PagedCache(pages(keys), pages(values)) for _ in range(2)]
    y = make_stack(layers, ops)(x, batch, caches[:1])
    assert same_bits(y, LayerStack(layers)(x, batch, caches[1:]))
    pairs = zip(caches[0].arrays, caches[1].arrays, strict=True)
    assert all(mx.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("bits", "group"), [(8, 32), (4, 32), (8, 64), (4, 128)])
def test_new_rows_get_the_codes_of_mlx(
    ops: Backend, dtype: mx.Dtype, bits: int, group: int
) -> None:
    """Codes equal those of MLX for groups of both signs, of one sign and of zeros."""
    width, tokens = 128, 36
    shape = LayerShape("qwen2", width=width, heads=2, head_dim=128, seq_len=64)
    (layer,) = make_layers(shape, 1, dtype, ops)
    # With this projection the values are the normalized row (head 0) and its negative (head 1),
    # plus the bias of the values.
    values = mx.concatenate([mx.eye(128), -mx.eye(128)]).astype(dtype)
    attention = replace(attention_of(layer), wv=values)
    stack = make_stack([replace(layer, mixer=attention)], ops)
    rows = normal((6, 1, width), dtype, seed=5)
    kinds = [rows, mx.abs(rows), -mx.abs(rows), rows * 0, rows * 60, rows * 1e-4]
    x = mx.concatenate(kinds)
    pages = [(0, 1, 2)[i // 16] for i in range(tokens)]
    table = PageTable(
        block_tables=[[page] for page in pages],
        cu_seqlens_q=range(tokens + 1),
        seq_lens=[1] * tokens,
        slot_mapping=range(tokens),
        num_pages=3,
        page_size=16,
    )
    batch = Batch.paged(table, "decode")
    empty = [quantize(mx.zeros((3, 2, 16, 128), dtype), group, bits) for _ in range(2)]
    cache = PagedCache(*empty)  # type: ignore[arg-type]
    stack(x, batch, [cache])
    v = attention.project(layer.input_norm(x), batch)[2]
    expected = quantize(v[:, :, 0], group, bits)  # T Hkv D
    assert isinstance(cache.values, QuantizedTensor)
    for part, codes in zip(cache.values.arrays, expected.arrays, strict=True):
        flat = part.swapaxes(1, 2).reshape(-1, 2, part.shape[-1])[:tokens]
        assert mx.array_equal(flat, codes)


def test_draft_tokens_of_one_text_see_each_other(ops: Backend, dtype: mx.Dtype) -> None:
    """Three tokens decoded at once give the bits of three tokens decoded one after another."""
    shape, pages = LayerShape(), range(10)
    stack = make_stack(make_layers(shape, 2, dtype, ops), ops)
    prompt = Batch.paged(make_table((pages, 0, 30)), "prefill")
    caches = make_caches("paged", 2, shape, dtype)
    stack(make_input(prompt, shape.width, dtype, seed=1), prompt, caches)
    others = [cache.fork() for cache in caches if isinstance(cache, PagedCache)]
    x = normal((3, 1, shape.width), dtype, seed=2)
    drafts = [(pages, at, at + 1) for at in (30, 31, 32)]
    together = stack(x, Batch.paged(make_table(*drafts), "decode"), caches)
    for i, draft in enumerate(drafts):
        alone = stack(x[i : i + 1], Batch.paged(make_table(draft), "decode"), others)
        assert same_bits(alone, together[i : i + 1])
    for cache, other in zip(caches, others, strict=True):
        assert all(mx.array_equal(a, b) for a, b in zip(cache.arrays, other.arrays, strict=True))


def test_shared_pages_equal_own_pages(ops: Backend, dtype: mx.Dtype) -> None:
    shape = LayerShape()
    stack = make_stack(make_layers(shape, 2, dtype, ops), ops)
    caches = make_caches("paged", 2, shape, dtype)
    prefix = Batch.paged(make_table(((3,), 0, 4), ((8,), 0, 4)), "prefill")
    once = make_input(Batch.at(0, 1, 4), shape.width, dtype, seed=1)
    stack(mx.concatenate([once, once], axis=1), prefix, caches)
    assert np.array_equal(exact(caches[0].arrays[0][3]), exact(caches[0].arrays[0][8]))
    step = Batch.paged(make_table(((3, 5), 4, 5), ((8, 6), 4, 5), ((3, 1), 4, 5)), "decode")
    token = normal((1, 1, shape.width), dtype, seed=2)
    y = stack(mx.concatenate([token] * 3), step, caches)
    assert same_bits(y[0], y[1])
    assert same_bits(y[0], y[2])
