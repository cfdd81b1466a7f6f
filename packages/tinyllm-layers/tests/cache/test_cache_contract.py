"""The contract of all caches: a failed call changes nothing, and forks are independent."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import (
    Batch,
    DenseCache,
    KVCache,
    LayerCache,
    PagedCache,
    QuantizedCache,
    RotatingCache,
)
from tinyllm_layers.attention import attention_cache
from tinyllm_layers.cache.dense import CAPACITY_STEP, TokenBuffer
from tinyllm_ops import REFERENCE, OpSet, PageTable, QuantizedTensor, quantize
from tinyllm_ops.testing import assert_close, exact, normal

D, PAGE, PAGES = 32, 4, 12
SHAPE = (PAGES, 2, PAGE, D)
QKV = tuple[mx.array, mx.array, mx.array]
RandomQKV = Callable[..., QKV]


def quantized_pages() -> PagedCache:
    return PagedCache.empty(SHAPE, mx.float32, bits=8, group_size=32)


DENSE: dict[str, Callable[[], LayerCache]] = {
    "dense": DenseCache,
    "rotating": lambda: RotatingCache(11, keep=3),
    "rotating, turned": lambda: RotatingCache(4, keep=1),
    "paged": lambda: PagedCache.empty(SHAPE, mx.float32),
    "paged, window": lambda: PagedCache.empty(SHAPE, mx.float32, window=3),
}
CACHES = DENSE | {"quantized": lambda: QuantizedCache(8, 32), "paged in 8 bits": quantized_pages}
KV: dict[str, Callable[[], KVCache]] = {
    kind: make  # type: ignore[misc]
    for kind, make in CACHES.items()
    if "paged" not in kind
}


def batch_of(cache: LayerCache, start: int, length: int, rows: int = 1) -> Batch:
    """Return the batch of a chunk of one text, which has pages 2, 7, 1, ... in a paged cache."""
    if not isinstance(cache, PagedCache):
        return Batch.at(start, rows, length)
    pages = [2, 7, 1, 0, 9]
    table = PageTable.of([(pages, start, start + length)], num_pages=PAGES, page_size=PAGE)
    return Batch.paged(table, "decode" if length == 1 else "prefill")


def run(
    cache: LayerCache, qkv: QKV, edges: Sequence[int], ops: OpSet = REFERENCE
) -> list[mx.array]:
    """Pass a text to the cache in chunks, cut at `edges`, and return the output of each chunk."""
    return [
        attention_cache(cache).attend(  # type: ignore[call-arg]
            *(part[:, :, first:stop] for part in qkv),  # type: ignore[arg-type]
            batch_of(cache, first, stop - first),
            D**-0.5,
            ops,
        )
        for first, stop in pairwise(edges)
    ]


def state(cache: LayerCache) -> list[object]:
    """Return everything that a cache holds."""
    offset = cache.offset if isinstance(cache, KVCache) else None
    return [offset, cache.nbytes, *(np.array(array).tolist() for array in cache.arrays)]


def bad_arguments(length: int) -> dict[str, tuple[dict[str, mx.array], str]]:
    """Return queries, keys or values of `length` tokens that do not fit, and the error messages.

    Arguments that fit have 4 query heads and 2 key/value heads of D features in float32.
    """

    def x(heads: int, tokens: int = length, dim: int = D, dtype: mx.Dtype = mx.float32) -> mx.array:
        return mx.ones((1, heads, tokens, dim), dtype)

    half = mx.float16
    return {
        "q heads": ({"q": x(3)}, "q: expected a multiple of 2 key/value heads, got 3 heads"),
        "q tokens": ({"q": x(4, length + 1)}, "q: expected 1 x .* tokens, as the batch has"),
        "q axes": ({"q": x(4)[0]}, "q: expected axes B H L D, got shape"),
        "q dtype": ({"q": x(4, dtype=half)}, "k: expected dtype .*float16, got .*float32"),
        "k dim": ({"k": x(2, dim=D // 2)}, "k: expected shape"),
        "k tokens": ({"k": x(2, length + 1), "v": x(2, length + 1)}, "k: expected keys of"),
        "k dtype": ({"k": x(2, dtype=half)}, "k: expected dtype .*float32, got .*float16"),
        "k axes": ({"k": x(2)[0]}, "k: expected"),
        "v heads": ({"v": x(1)}, "v: expected shape"),
        "v tokens": ({"v": x(2, length + 1)}, "v: expected shape"),
        "v dtype": ({"v": x(2, dtype=half)}, "v: expected dtype .*float32, got .*float16"),
        "v axes": ({"v": x(2)[0]}, "v: expected"),
    }


@pytest.mark.parametrize("wrong", bad_arguments(1))
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("before", [0, 6])
@pytest.mark.parametrize("kind", CACHES)
def test_after_a_refusal_a_cache_is_as_before(
    unchecked: None, random_qkv: RandomQKV, kind: str, before: int, length: int, wrong: str
) -> None:
    cache, twin = CACHES[kind](), CACHES[kind]()
    qkv = random_qkv((1, 4, 2, before + length, D))
    for each in (cache, twin):
        run(each, qkv, [0, before] if before else [])
    unchanged = state(cache)
    new = dict(zip("qkv", (part[:, :, before:] for part in qkv), strict=True))
    change, words = bad_arguments(length)[wrong]
    with pytest.raises(ValueError, match=words):
        attention_cache(cache).attend(
            **(new | change), batch=batch_of(cache, before, length), scale=1.0, ops=REFERENCE
        )
    assert state(cache) == unchanged
    edges = [before, before + length]
    assert mx.array_equal(run(cache, qkv, edges)[0], run(twin, qkv, edges)[0])
    assert state(cache) == state(twin)


STORED = {
    "rows": ((2, 2, 2, 1, D), mx.float32, r"k: expected shape \(1, 2, 1, 32\), got \(2, 2,"),
    "heads": ((1, 3, 3, 1, D), mx.float32, r"k: expected shape \(1, 2, 1, 32\), got \(1, 3,"),
    "dim": ((1, 4, 2, 1, 64), mx.float32, r"k: expected shape \(1, 2, 1, 32\), got \(1, 2, 1, 64"),
    "dtype": ((1, 4, 2, 1, D), mx.float16, "k: expected dtype .*float32, got .*float16"),
}


@pytest.mark.parametrize("other", STORED)
@pytest.mark.parametrize("kind", KV)
def test_new_tokens_have_the_shape_and_dtype_of_stored_ones(
    random_qkv: RandomQKV, kind: str, other: str
) -> None:
    cache = KV[kind]()
    run(cache, random_qkv((1, 4, 2, 6, D)), [0, 6])
    unchanged = state(cache)
    shape, dtype, words = STORED[other]
    qkv = random_qkv(shape, dtype)
    with pytest.raises(ValueError, match=words):
        cache.attend(*qkv, Batch.at(6, shape[0], 1), 1.0, REFERENCE)
    with pytest.raises(ValueError, match=words):
        cache.update(*qkv[1:])
    assert state(cache) == unchanged


@pytest.mark.parametrize("wrong", ["k axes", "v heads", "v tokens", "v dtype", "v axes"])
@pytest.mark.parametrize("before", [0, 6])
@pytest.mark.parametrize("kind", KV)
def test_after_a_refused_update_a_cache_is_as_before(
    unchecked: None, random_qkv: RandomQKV, kind: str, before: int, wrong: str
) -> None:
    cache, (_, k, v) = KV[kind](), random_qkv((1, 4, 2, 9, D))
    if before:
        cache.update(k[:, :, :before], v[:, :, :before])
    unchanged = state(cache)
    change, words = bad_arguments(3)[wrong]
    with pytest.raises(ValueError, match=words):
        cache.update(**({"k": k[:, :, 6:], "v": v[:, :, 6:]} | change))
    assert state(cache) == unchanged


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("before", [0, 6])
@pytest.mark.parametrize("kind", CACHES)
def test_after_an_error_of_an_op_a_cache_is_as_before(
    random_qkv: RandomQKV, kind: str, before: int, length: int
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    cache, twin = CACHES[kind](), CACHES[kind]()
    qkv = random_qkv((1, 4, 2, before + length, D))
    for each in (cache, twin):
        run(each, qkv, [0, before] if before else [])
    unchanged, edges = state(cache), [before, before + length]
    ops = replace(REFERENCE, attention=broken, paged_attention=broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(cache, qkv, edges, ops)
    assert state(cache) == unchanged
    assert mx.array_equal(run(cache, qkv, edges)[0], run(twin, qkv, edges)[0])


@pytest.mark.parametrize("cuts", [[0, 9], [0, 5, 6, 9], list(range(10))], ids=str)
@pytest.mark.parametrize("kind", KV)
def test_update_returns_all_that_is_stored(
    random_qkv: RandomQKV, kind: str, cuts: list[int]
) -> None:
    cache = KV[kind]()
    _, k, v = random_qkv((2, 2, 2, 9, D))
    for first, stop in pairwise(cuts):
        stored = cache.update(k[:, :, first:stop], v[:, :, first:stop])
    assert cache.offset == 9
    for new, found in zip((k, v), stored, strict=True):
        quantized = isinstance(cache, QuantizedCache)
        assert isinstance(found, QuantizedTensor if quantized else mx.array)
        numbers = exact(quantize(new, 32, 8) if quantized else new)
        order = np.arange(9)
        if isinstance(cache, RotatingCache):
            order = np.array(cache.slot_positions())
            assert set(order) == {*range(cache.keep), *range(9 - min(cache._ring, 9), 9)}
        assert np.array_equal(exact(found), numbers[:, :, order])


@pytest.mark.parametrize("kind", KV)
def test_update_and_attend_store_the_same(random_qkv: RandomQKV, kind: str) -> None:
    qkv, other = random_qkv((1, 4, 2, 9, D)), KV[kind]()
    cache = KV[kind]()
    run(cache, qkv, [0, 5, 6, 9])
    for first, stop in ((0, 5), (5, 6), (6, 9)):
        other.update(*(part[:, :, first:stop] for part in qkv[1:]))
    assert state(cache) == state(other)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("first", ["original", "fork"])
@pytest.mark.parametrize("kind", CACHES)
def test_a_fork_and_its_original_go_on_independently(
    random_qkv: RandomQKV, kind: str, first: str, length: int
) -> None:
    stop = 6 + length
    texts = [random_qkv((1, 4, 2, stop, D), seed=seed) for seed in (0, 5)]
    prompt = texts[0]
    texts[1] = tuple(  # type: ignore[assignment]
        mx.concatenate([a[:, :, :6], b[:, :, 6:]], axis=2) for a, b in zip(*texts, strict=True)
    )
    original = CACHES[kind]()
    run(original, prompt, [0, 6])
    fork = original.fork()  # type: ignore[attr-defined]
    assert type(fork) is type(original)
    assert state(fork) == state(original)
    caches = [original, fork] if first == "original" else [fork, original]
    untouched = state(caches[1])
    outs = run(caches[0], texts[0], [6, stop])
    assert state(caches[1]) == untouched
    written = state(caches[0])
    outs += run(caches[1], texts[1], [6, stop])
    assert state(caches[0]) == written
    for cache, text, out in zip(caches, texts, outs, strict=True):
        alone = CACHES[kind]()
        (_, expected) = run(alone, text, [0, 6, stop])
        assert mx.array_equal(out, expected)
        assert state(cache) == state(alone)


@pytest.mark.parametrize("kind", CACHES)
def test_an_empty_cache_can_be_forked(random_qkv: RandomQKV, kind: str) -> None:
    cache, qkv = CACHES[kind](), random_qkv((1, 4, 2, 5, D))
    fork = cache.fork()  # type: ignore[attr-defined]
    empty = state(fork)
    run(cache, qkv, [0, 5])
    assert state(fork) == empty
    run(fork, qkv, [0, 5])
    assert state(fork) == state(cache)


@pytest.mark.parametrize("kind", KV)
def test_a_trimmed_fork_leaves_the_original_alone(random_qkv: RandomQKV, kind: str) -> None:
    cache, qkv = KV[kind](), random_qkv((1, 4, 2, 4, D))
    run(cache, qkv, [0, 4])
    unchanged, fork = state(cache), cache.fork()
    fork.trim(2)
    assert (fork.offset, state(cache)) == (2, unchanged)
    run(fork, qkv, [2, 4])
    assert state(fork) == unchanged == state(cache)


def test_reserved_arrays_are_stored_by_commit() -> None:
    cache = DenseCache()
    k, v = (normal((2, 3, 5, 8), seed=seed) for seed in (1, 2))
    for first, stop in ((0, 2), (2, 3), (3, 5)):
        (reserved,) = cache.reserve((2, 3, stop - first, 8), mx.float32)
        assert reserved.shape == (2, 2, 3, CAPACITY_STEP, 8)
        updated = reserved[...]
        for part, new in enumerate((k, v)):
            updated[:, part, :, first:stop] = new[:, :, first:stop]
        assert cache.offset == first  # nothing is stored before the commit
        cache.commit([updated], stop - first)
    other = DenseCache()
    other.update(k, v)
    assert state(cache) == state(other)
    (array,) = cache.reserve((2, 3, CAPACITY_STEP, 8), mx.float32)
    assert array.shape == (2, 2, 3, 2 * CAPACITY_STEP, 8)
    assert_close(array[:, 0, :, :5], exact(k))
    assert_close(array[:, 1, :, :5], exact(v))
    assert state(cache) == state(other)


def test_reserved_codes_are_stored_by_commit() -> None:
    cache, other = QuantizedCache(4, 32), QuantizedCache(4, 32)
    k, v = (normal((2, 3, 5, 64), seed=seed) for seed in (1, 2))
    for first, stop in ((0, 2), (2, 3), (3, 5)):
        reserved = cache.reserve((2, 3, stop - first, 64), mx.float32)
        new = [part for x in (k, v) for part in quantize(x[:, :, first:stop], 32, 4).arrays]
        widths = [8, 2, 2, 8, 2, 2]
        assert [array.shape for array in reserved] == [
            (2, 3, CAPACITY_STEP, width) for width in widths
        ]
        updated = [array[...] for array in reserved]
        for array, part in zip(updated, new, strict=True):
            array[:, :, first:stop] = part
        assert cache.offset == first  # nothing is stored before the commit
        cache.commit(updated, stop - first)
    other.update(k, v)
    assert state(cache) == state(other)


@pytest.mark.parametrize("committed", range(6))
def test_an_interrupt_within_a_commit_loses_no_token(
    random_qkv: RandomQKV, monkeypatch: pytest.MonkeyPatch, committed: int
) -> None:
    cache, twin = QuantizedCache(8, 32), QuantizedCache(8, 32)
    qkv = random_qkv((1, 4, 2, 9, D))
    for each in (cache, twin):
        run(each, qkv, [0, 5])
    commit, left = TokenBuffer.commit, committed

    def interrupted(buffer: TokenBuffer, array: mx.array, count: int) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        commit(buffer, array, count)

    with monkeypatch.context() as patch:
        patch.setattr(TokenBuffer, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(cache, qkv, [5, 7])
    assert cache.offset == 5
    cache.trim(5)
    assert mx.array_equal(run(cache, qkv, [5, 9])[0], run(twin, qkv, [5, 9])[0])
    assert state(cache) == state(twin)


def test_arrays_that_are_reserved_but_not_stored_change_nothing() -> None:
    cache = DenseCache()
    k = normal((1, 2, CAPACITY_STEP + 1, 8), seed=1)
    cache.update(k[:, :, :5], k[:, :, :5])
    shape = (1, 2, 1, 8)
    cache.commit(cache.reserve(shape, mx.float32), 1)
    (longer,) = cache.reserve((1, 2, CAPACITY_STEP, 8), mx.float32)
    assert longer.shape[3] == 2 * CAPACITY_STEP  # it is dropped
    for length in range(6, CAPACITY_STEP):
        reserved = cache.reserve(shape, mx.float32)
        assert reserved[0].shape[3] == CAPACITY_STEP
        cache.commit(reserved, 1)
        assert cache.offset == length + 1
    assert cache.reserve(shape, mx.float32)[0].shape[3] == 2 * CAPACITY_STEP
    with pytest.raises(ValueError, match="x: expected dtype"):
        cache.reserve(shape, mx.float16)


def test_reserve_refuses_tokens_of_another_shape_or_dtype() -> None:
    cache = DenseCache()
    cache.reserve((1, 2, 3, 8), mx.float16)  # fixes no shape or dtype, because nothing is committed
    cache.update(mx.ones((2, 3, 5, 8)), mx.ones((2, 3, 5, 8)))
    with pytest.raises(ValueError, match=r"x: expected shape \(2, 2, 3, 1, 8\), got \(1,"):
        cache.reserve((1, 3, 1, 8), mx.float32)
    with pytest.raises(ValueError, match=r"x: expected dtype .*float32, got .*float16"):
        cache.reserve((2, 3, 1, 8), mx.float16)
    quantized = QuantizedCache(8, 64)
    with pytest.raises(ValueError, match="k: expected a head dim in groups of 64, got 96"):
        quantized.reserve((2, 3, 1, 96), mx.float32)
    quantized.update(mx.ones((2, 3, 5, 64)), mx.ones((2, 3, 5, 64)))
    with pytest.raises(ValueError, match=r"k: expected shape \(2, 3, 1, 64\), got \(1,"):
        quantized.reserve((1, 3, 1, 64), mx.float32)
    with pytest.raises(ValueError, match=r"k: expected dtype .*float32, got .*float16"):
        quantized.reserve((2, 3, 1, 64), mx.float16)
