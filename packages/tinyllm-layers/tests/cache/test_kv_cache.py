"""Memory, trimming and error messages of the caches that are not paged."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import pytest
from tinyllm_layers import Batch, DenseCache, KVCache, QuantizedCache, RotatingCache
from tinyllm_layers.cache.dense import CAPACITY_STEP
from tinyllm_ops import REFERENCE, OpSet, Phase, Weight
from tinyllm_ops.testing import normal

Attend = Callable[..., mx.array]
RandomQKV = Callable[..., tuple[mx.array, mx.array, mx.array]]

GROWING = pytest.mark.parametrize(
    ("make", "token_bytes"),
    [
        (DenseCache, 2 * 64 * 4),
        (lambda: QuantizedCache(8, 64), 2 * (64 + 2 * 4)),
        (lambda: QuantizedCache(4, 32), 2 * (32 + 2 * 2 * 4)),
    ],
    ids=["dense", "quantized to 8", "quantized to 4"],
)


@GROWING
def test_bytes_grow_by_steps_and_not_by_tokens(
    attend: Attend, random_qkv: RandomQKV, make: Callable[[], KVCache], token_bytes: int
) -> None:
    cache = make()
    assert (cache.nbytes, cache.arrays, cache.offset) == (0, [], 0)
    step = CAPACITY_STEP * token_bytes * 3 * 2  # for 3 rows of 2 key/value heads
    growth = [(1, 1), (1, 1), (CAPACITY_STEP - 2, 1), (1, 2), (1, 2), (2 * CAPACITY_STEP, 4)]
    for tokens, steps in growth:
        attend(cache, random_qkv((3, 2, 2, tokens, 64)))
        assert cache.nbytes == steps * step
        assert sum(array.nbytes for array in cache.arrays) == cache.nbytes
    assert cache.offset == 3 * CAPACITY_STEP + 2


@GROWING
def test_an_expected_length_gets_its_capacity_at_once(
    attend: Attend, random_qkv: RandomQKV, make: Callable[[], KVCache], token_bytes: int
) -> None:
    cache = make()
    cache.set_expected_length(3 * CAPACITY_STEP + 1)
    for _ in range(4):
        attend(cache, random_qkv((1, 2, 2, CAPACITY_STEP, 64)))
        assert cache.nbytes == 4 * CAPACITY_STEP * token_bytes * 2


def test_a_long_array_grows_by_a_quarter() -> None:
    cache = DenseCache()
    for tokens in (16 * CAPACITY_STEP, 1):
        cache.update(mx.zeros((1, 1, tokens, 8)), mx.zeros((1, 1, tokens, 8)))
    assert cache.arrays[0].shape[3] == 20 * CAPACITY_STEP


@pytest.mark.parametrize(
    "lengths", [[3, 1, 4], [CAPACITY_STEP - 1, 1, 1], [CAPACITY_STEP + 1, CAPACITY_STEP]]
)
def test_an_array_that_grows_keeps_all_tokens(dtype: mx.Dtype, lengths: list[int]) -> None:
    cache = DenseCache()
    k, v = (
        [normal((2, 1, tokens, 8), dtype, seed=seed + tokens) for tokens in lengths]
        for seed in (0, 1)
    )
    for chunk in zip(k, v, strict=True):
        stored = cache.update(*chunk)
    assert stored[0].dtype == dtype
    for tokens, chunks in zip(stored, (k, v), strict=True):
        assert mx.array_equal(tokens, mx.concatenate(chunks, axis=2))


@pytest.mark.parametrize(("max_size", "keep"), [(5, 4), (16, 0), (300, 4)])
def test_bytes_of_a_rotating_cache_are_bounded_whatever_the_length(
    attend: Attend, random_qkv: RandomQKV, max_size: int, keep: int
) -> None:
    cache = RotatingCache(max_size, keep)
    bound = max_size * 2 * 8 * 4 * 3 * 2
    for tokens in [1, 7, 1, 1, 290, 1, 500, 1, 2, 2 * max_size, 1]:
        attend(cache, random_qkv((3, 2, 2, tokens, 8)))
        assert cache.nbytes <= bound
    assert cache.nbytes == bound
    assert cache.offset == 805 + 2 * max_size


def peek(
    q: mx.array,
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: mx.array | str | None = None,
    *,
    phase: Phase | None = None,
) -> mx.array:
    """Read only the last token: a cheap replacement of attention."""
    parts = [part for w in (k, v) for part in ([w] if isinstance(w, mx.array) else w.arrays)]
    return sum((part[..., -1:, :1].astype(q.dtype) for part in parts), q)


@pytest.mark.parametrize(
    "make",
    [DenseCache, QuantizedCache, lambda: RotatingCache(1000), lambda: RotatingCache(5000)],
    ids=["dense", "quantized", "rotating", "rotating, not full"],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_token_is_written_without_a_copy_of_those_before(
    make: Callable[[], KVCache], ahead: bool
) -> None:
    # Compute on the CPU, where MLX frees the inputs of a computation before `mx.eval` returns. With
    # `ahead`, the graph of a token is built before the previous token is computed, and scheduled
    # after it.
    before = mx.default_device()
    mx.set_default_device(mx.Device(mx.cpu))
    try:
        cache, ops = make(), replace(REFERENCE, attention=peek)
        prompt, token = mx.zeros((1, 4, 3900, 128)), mx.zeros((1, 4, 1, 128))
        out = cache.attend(prompt, prompt, prompt, Batch.at(0, 1, 3900), 1.0, ops)
        mx.eval(out, token, cache.arrays)
        del prompt
        size = cache.nbytes
        mx.clear_cache()
        mx.reset_peak_memory()
        start = mx.get_active_memory()
        for _ in range(100):
            step = Batch.at(cache.offset, 1, 1)
            coming = cache.attend(token, token, token, step, 1.0, ops)
            if ahead:
                mx.eval(out)
                mx.async_eval(coming)
            else:
                mx.eval(coming)
            out = coming
        mx.eval(out)
        growth = mx.get_peak_memory() - start
    finally:
        mx.set_default_device(before)
    assert cache.nbytes == size
    assert growth < size / 20


@pytest.mark.parametrize(
    "make",
    [DenseCache, lambda: QuantizedCache(8, 32), lambda: RotatingCache(9)],
    ids=["dense", "quantized", "rotating"],
)
@pytest.mark.parametrize("length", [-1, 7])
def test_trims_to_no_more_than_it_has_seen(
    attend: Attend, random_qkv: RandomQKV, make: Callable[[], KVCache], length: int
) -> None:
    cache = make()
    attend(cache, random_qkv((1, 2, 1, 6, 32)))
    assert [n for n in range(-2, 9) if cache.can_trim(n)] == list(range(7))
    with pytest.raises(ValueError, match=f"length: expected 0 to 6.*, got {length}"):
        cache.trim(length)
    assert cache.offset == 6


def test_a_turned_ring_can_be_trimmed_to_its_own_length_only(
    attend: Attend, random_qkv: RandomQKV
) -> None:
    cache = RotatingCache(8, keep=2)
    attend(cache, random_qkv((1, 2, 1, 8, 32)))
    assert [n for n in range(10) if cache.can_trim(n)] == list(range(9))
    attend(cache, random_qkv((1, 2, 1, 1, 32)))
    assert [n for n in range(11) if cache.can_trim(n)] == [9]
    cache.trim(9)
    with pytest.raises(ValueError, match=r"expected 9, because .* overwritten, got 8"):
        cache.trim(8)
    assert cache.offset == 9


@pytest.mark.parametrize(
    "make",
    [DenseCache, lambda: QuantizedCache(8, 32), lambda: RotatingCache(9), lambda: RotatingCache(6)],
    ids=["dense", "quantized", "rotating", "rotating, full"],
)
@pytest.mark.parametrize("tokens", [0, 6, 7, 9])
def test_trimmable_is_the_longest_prefix_that_can_be_trimmed_to(
    attend: Attend, random_qkv: RandomQKV, make: Callable[[], KVCache], tokens: int
) -> None:
    cache = make()
    if tokens:
        attend(cache, random_qkv((1, 2, 1, tokens, 32)))
    for length in range(12):
        expected = max((n for n in range(1, length + 1) if cache.can_trim(n)), default=0)
        assert cache.trimmable(length) == expected


@pytest.mark.parametrize(("max_size", "keep"), [(4, 4), (4, 5), (4, -1), (1, 4)])
def test_a_rotating_cache_refuses_to_keep_all_its_tokens(max_size: int, keep: int) -> None:
    words = f"keep: expected 0 to {max_size - 1}, got {keep}"
    with pytest.raises(ValueError, match=words):
        RotatingCache(max_size, keep)


@pytest.mark.parametrize(
    ("bits", "group_size", "words"),
    [
        (7, 64, r"bits: expected one of \(2, 3, 4, 5, 6, 8\), got 7"),
        (8, 48, r"group_size: expected one of \(32, 64, 128\), got 48"),
    ],
)
def test_a_quantized_cache_refuses_formats_that_mlx_does_not_define(
    bits: int, group_size: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        QuantizedCache(bits, group_size)


def test_a_quantized_cache_refuses_heads_that_are_not_whole_groups(
    ops: OpSet, attend: Attend, random_qkv: RandomQKV
) -> None:
    cache = QuantizedCache(8, 64)
    words = r"expected a last axis in groups of 64, got shape \(1, 1, 2, 96\)"
    with pytest.raises(ValueError, match=words):
        attend(cache, random_qkv((1, 2, 1, 2, 96)), ops=ops)
    assert cache.offset == 0


@pytest.mark.parametrize("make", [DenseCache, lambda: RotatingCache(9)], ids=["dense", "rotating"])
def test_refuses_other_rows_or_numbers_than_it_holds(
    unchecked: None, attend: Attend, random_qkv: RandomQKV, make: Callable[[], KVCache]
) -> None:
    cache = make()
    attend(cache, random_qkv((3, 2, 1, 4, 8)))
    with pytest.raises(ValueError, match=r"expected shape \(3, 1, 1, 8\), got \(1, 1, 1, 8\)"):
        attend(cache, random_qkv((1, 2, 1, 1, 8)))
    with pytest.raises(ValueError, match=r"expected dtype .*float32, got .*float16"):
        attend(cache, random_qkv((3, 2, 1, 1, 8), mx.float16))
    assert cache.offset == 4
