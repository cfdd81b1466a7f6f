"""Attention of a text in chunks equals attention of the whole text, for any division."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tinyllm_layers import Batch, DenseCache, KVCache, QuantizedCache, RotatingCache
from tinyllm_ops import OpSet, QuantizedTensor
from tinyllm_ops.testing import OPSETS, assert_close, exact, oracle

Attend = Callable[..., mx.array]
QKV = tuple[mx.array, mx.array, mx.array]
RandomQKV = Callable[..., QKV]

CACHES: dict[str, Callable[[], KVCache]] = {
    "dense": DenseCache,
    "quantized to 8": lambda: QuantizedCache(8, 32),
    "quantized to 4": lambda: QuantizedCache(4, 32),
    "rotating": lambda: RotatingCache(11, keep=3),
    "rotating, none kept": lambda: RotatingCache(6, keep=0),
    "rotating, ring of one": lambda: RotatingCache(5, keep=4),
    "rotating, never full": lambda: RotatingCache(1000),
}
HEADS = st.sampled_from([(1, 1), (2, 1), (6, 2), (3, 3)])


def through_codes(x: mx.array, cache: QuantizedCache) -> NDArray[np.float64]:
    """Quantize x with MLX, and return the dequantized numbers in float64."""
    parts = mx.quantize(x, group_size=cache.group_size, bits=cache.bits)
    return exact(QuantizedTensor(*parts, cache.group_size, cache.bits))


def remembered(max_size: int, keep: int, length: int) -> NDArray[np.float64]:
    """Return the mask: token i sees the first `keep` and the last max_size - keep tokens."""
    mask = np.full((length, length), -np.inf)
    for i in range(length):
        text = list(range(i + 1))
        mask[i, text[:keep] + text[-(max_size - keep) :]] = 0
    return mask


def expected(cache: KVCache, qkv: QKV) -> NDArray[np.float64]:
    """Return the attention of a whole text, with the mask and the quantization of the cache."""
    q, k, v = qkv
    if isinstance(cache, QuantizedCache):
        keys, values = through_codes(k, cache), through_codes(v, cache)
        return oracle.attention(exact(q), keys, values, mask="causal")
    if isinstance(cache, RotatingCache):
        mask = remembered(cache.max_size, cache.keep, q.shape[2])
        return oracle.attention(exact(q), exact(k), exact(v), mask=mask)
    return oracle.attention(exact(q), exact(k), exact(v), mask="causal")


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("opset", OPSETS, ids=lambda opset: opset.name)
@given(
    rows=st.integers(1, 3),
    heads=HEADS,
    length=st.integers(1, 40),
    cuts=st.lists(st.integers(1, 39), max_size=8),
)
def test_any_cut_gives_the_attention_of_the_whole_text(
    attend: Attend,
    random_qkv: RandomQKV,
    kind: str,
    opset: OpSet,
    rows: int,
    heads: tuple[int, int],
    length: int,
    cuts: list[int],
) -> None:
    cache = CACHES[kind]()
    qkv = random_qkv((rows, *heads, length, 32), seed=length)
    assert_close(attend(cache, qkv, cuts, opset), expected(cache, qkv))
    assert cache.offset == length


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("cuts", [(), range(1, 23), (13, 14, 15), (2, 4)])
def test_any_dtype_gives_the_attention_of_the_whole_text(
    ops: OpSet,
    dtype: mx.Dtype,
    attend: Attend,
    random_qkv: RandomQKV,
    kind: str,
    cuts: tuple[int, ...] | range,
) -> None:
    cache = CACHES[kind]()
    qkv = random_qkv((3, 4, 2, 23, 32), dtype)
    y = attend(cache, qkv, cuts, ops)
    assert y.dtype == dtype
    assert_close(y, expected(cache, qkv))


@pytest.mark.parametrize("cuts", [(), (255,), (256,), (257, 258), range(250, 300), (3, 280)])
@pytest.mark.parametrize(
    "make",
    [
        DenseCache,
        lambda: QuantizedCache(4, 64),
        lambda: RotatingCache(262, keep=5),
        lambda: RotatingCache(256, keep=0),
        lambda: RotatingCache(20),
    ],
    ids=["dense", "quantized", "rotating", "rotating at a step", "rotating soon"],
)
def test_growing_by_a_step_loses_nothing(
    ops: OpSet,
    attend: Attend,
    random_qkv: RandomQKV,
    make: Callable[[], KVCache],
    cuts: tuple[int, ...] | range,
) -> None:
    cache = make()
    qkv = random_qkv((1, 2, 1, 300, 64))
    assert_close(attend(cache, qkv, cuts, ops), expected(cache, qkv))


@pytest.mark.parametrize("kind", CACHES)
@given(
    length=st.integers(1, 5),
    kept=st.integers(0, 5),
    more=st.integers(1, 20),
    cuts=st.lists(st.integers(1, 19), max_size=4),
    opset=st.sampled_from(OPSETS),
)
@settings(max_examples=15)
def test_after_a_trim_the_trimmed_tokens_have_no_effect(
    attend: Attend,
    random_qkv: RandomQKV,
    kind: str,
    length: int,
    kept: int,
    more: int,
    cuts: list[int],
    opset: OpSet,
) -> None:
    kept = min(kept, length)
    before = random_qkv((2, 4, 2, length, 32), seed=1)
    after = random_qkv((2, 4, 2, more, 32), seed=9)
    cache = CACHES[kind]()
    attend(cache, before, (), opset)
    assert cache.can_trim(kept)
    cache.trim(kept)
    assert cache.offset == kept
    y = attend(cache, after, cuts, opset)
    pairs = zip(before, after, strict=True)
    q, k, v = (mx.concatenate([old[:, :, :kept], new], axis=2) for old, new in pairs)
    assert_close(y, expected(cache, (q, k, v))[:, :, kept:])


@pytest.mark.parametrize("kind", CACHES)
def test_a_chunk_of_no_tokens_changes_nothing(
    ops: OpSet, attend: Attend, random_qkv: RandomQKV, kind: str
) -> None:
    cache = CACHES[kind]()
    nothing = random_qkv((2, 4, 2, 0, 32))
    qkv = random_qkv((2, 4, 2, 15, 32))
    first, second = (tuple(part[:, :, cut] for part in qkv) for cut in (slice(9), slice(9, 15)))
    outs = []
    for chunk in (nothing, first, nothing, second, nothing):
        batch = Batch.at(cache.offset, 2, chunk[0].shape[2])
        outs.append(cache.attend(*chunk, batch, 32**-0.5, ops))  # type: ignore[arg-type, call-arg]
    assert [out.shape[2] for out in outs] == [0, 9, 0, 6, 0]
    assert cache.offset == 15
    assert_close(mx.concatenate(outs, axis=2), expected(cache, qkv))
