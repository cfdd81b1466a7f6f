from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_layers import (
    Batch,
    Biases,
    Communicator,
    DenseCache,
    GroupedQueryAttention,
    KVCache,
    QuantizedCache,
    RoPE,
    RotatingCache,
)
from tinyllm_layers.testing import oracle, packed, random_attention
from tinyllm_ops import OpSet, Phase, QuantizedTensor, Weight, Yarn, dequantize
from tinyllm_ops.testing import assert_close, exact, normal

HEADS = [(1, 1), (2, 1), (3, 3), (7, 1), (14, 2), (16, 8), (40, 8), (40, 40)]


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("biased", ["", "qkv", "qkvo"])
@pytest.mark.parametrize("normed", [False, True])
def test_is_the_attention_of_every_qwen(
    ops: OpSet, dtype: mx.Dtype, heads: int, kv_heads: int, biased: str, normed: bool
) -> None:
    layer = random_attention(
        24, heads, kv_heads, 10, biased=biased, normed=normed, dtype=dtype, ops=ops
    )
    x = normal((2, 9, 24), dtype, seed=30)
    y = layer(x, Batch.at(0, 2, 9), DenseCache())
    assert y.dtype == dtype
    assert_close(y, oracle.attention(exact(x), layer))
    assert mx.array_equal(layer(x), y)  # without a cache: the same bits


@pytest.mark.parametrize("bits", [4, 8])
def test_reads_quantized_weights_as_the_numbers_they_stand_for(
    ops: OpSet, dtype: mx.Dtype, bits: int
) -> None:
    layer = random_attention(
        64, 6, 2, 32, biased="qkv", normed=True, dtype=dtype, pack=packed(bits), ops=ops
    )
    x = normal((2, 5, 64), dtype, seed=30)
    assert_close(layer(x), oracle.attention(exact(x), layer))


def test_quantized_weights_equal_dequantized_weights(ops: OpSet) -> None:
    layer = random_attention(64, 6, 2, 32, pack=packed(4), ops=ops)

    def dense(w: Weight) -> mx.array:
        assert isinstance(w, QuantizedTensor)
        return dequantize(w)

    plain = replace(
        layer, wq=dense(layer.wq), wk=dense(layer.wk), wv=dense(layer.wv), wo=dense(layer.wo)
    )
    x = normal((2, 5, 64), seed=30)
    assert_close(layer(x), exact(plain(x)))


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("scaling", [None, Yarn(4.0, 16)], ids=str)
def test_rotates_with_all_settings_of_its_rope(
    ops: OpSet, traditional: bool, scaling: Yarn | None
) -> None:
    rope = RoPE(10, 1000, 500.0, traditional, scaling=scaling, ops=ops)
    layer = random_attention(24, 4, 2, 10, normed=True, rope=rope, ops=ops)
    x = normal((2, 9, 24), seed=30)
    assert_close(layer(x), oracle.attention(exact(x), layer))


@pytest.mark.parametrize("edges", [(0, 4, 11), (0, 1, 2, 11), (0, 10, 11), (0, 0, 11, 11)])
def test_continues_after_the_tokens_in_the_cache(ops: OpSet, edges: tuple[int, ...]) -> None:
    layer = random_attention(24, 4, 2, 10, biased="qkv", normed=True, ops=ops)
    x = normal((3, 11, 24), seed=30)
    implied, stated = DenseCache(), DenseCache()
    y = mx.concatenate([layer(x[:, a:b], cache=implied) for a, b in pairwise(edges)], axis=1)
    assert_close(y, oracle.attention(exact(x), layer))
    outs = [layer(x[:, a:b], Batch.at(a, 3, b - a), stated) for a, b in pairwise(edges)]
    assert mx.array_equal(mx.concatenate(outs, axis=1), y)


def test_rows_at_offsets_of_their_own_are_the_rows_alone(ops: OpSet, dtype: mx.Dtype) -> None:
    layer = random_attention(24, 4, 2, 10, normed=True, dtype=dtype, ops=ops)
    x = normal((3, 5, 24), dtype, seed=30)
    offsets = [7, 0, 400]
    together = DenseCache()
    positions = mx.array(offsets)[:, None] + mx.arange(5)
    y = layer(x, Batch("prefill", 3, 5, positions), together)
    for row, offset in enumerate(offsets):
        alone = DenseCache()
        expected = layer(x[row : row + 1], Batch.at(offset, 1, 5), alone)
        # A product of another shape may round differently, so rows are compared with a tolerance.
        assert_close(y[row : row + 1], exact(expected))
        for both, single in zip(together.arrays, alone.arrays, strict=True):
            assert_close(both[row : row + 1], exact(single), position=offset)


CACHES: dict[str, Callable[[], KVCache]] = {
    "dense": DenseCache,
    "quantized": lambda: QuantizedCache(8, 32),
    "rotating": lambda: RotatingCache(9, 2),
}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_tokens_that_do_not_follow_those_of_the_cache_are_refused(
    ops: OpSet, kind: str, phase: Phase
) -> None:
    layer, cache = random_attention(64, 4, 2, 32, ops=ops), CACHES[kind]()
    layer(mx.zeros((1, 3, 64)), Batch.at(0, 1, 3), cache)
    for offset in (0, 2, 4):
        with pytest.raises(ValueError, match=f"from position 3 on.*got .* {offset} on"):
            layer(mx.zeros((1, 1, 64)), Batch.at(offset, 1, 1, phase), cache)
    assert cache.offset == 3
    layer(mx.zeros((1, 1, 64)), Batch.at(3, 1, 1, phase), cache)


@pytest.mark.parametrize("kind", CACHES)
def test_a_prompt_chunk_of_one_token_is_like_any_other(ops: OpSet, kind: str) -> None:
    layer = random_attention(64, 4, 2, 32, normed=True, ops=ops)
    x = normal((1, 14, 64), seed=30)
    caches: list[KVCache] = [CACHES[kind](), CACHES[kind]()]
    whole = layer(x, Batch.at(0, 1, 14), caches[0])
    layer(x[:, :5], Batch.at(0, 1, 5), caches[1])
    outs = [layer(x[:, i : i + 1], Batch.at(i, 1, 1, "prefill"), caches[1]) for i in range(5, 14)]
    assert_close(mx.concatenate(outs, axis=1), exact(whole[:, 5:]))


def test_the_phase_of_the_batch_reaches_every_op_that_rounds_by_it(ops: OpSet) -> None:
    phases: list[str | None] = []

    def linear(*args: Any, phase: Any = None, **kwargs: Any) -> Any:
        phases.append(phase)
        return ops.linear(*args, phase=phase, **kwargs)

    def attention(*args: Any, phase: Any = None, **kwargs: Any) -> Any:
        phases.append(phase)
        return ops.attention(*args, phase=phase, **kwargs)

    layer = random_attention(ops=replace(ops, linear=linear, attention=attention))
    for cache in (DenseCache(), QuantizedCache(8, 32), RotatingCache(9)):
        for phase in ("prefill", "decode"):
            phases.clear()
            layer(mx.zeros((1, 1, 64)), Batch.at(cache.offset, 1, 1, phase), cache)
            assert phases == [phase] * 5


def test_no_tokens_give_an_empty_result(ops: OpSet, dtype: mx.Dtype) -> None:
    layer, cache = random_attention(24, 4, 2, 10, dtype=dtype, ops=ops), DenseCache()
    y = layer(mx.zeros((2, 0, 24), dtype), cache=cache)
    assert (y.shape, y.dtype, cache.offset) == ((2, 0, 24), dtype, 0)


class Rank(Communicator):
    """A communicator for one of two ranks. `all_reduce` adds 100, so that tests see each call."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce(self, part: mx.array) -> mx.array:
        return part + 100


def test_the_first_process_adds_residual_and_bias_before_the_sum(ops: OpSet) -> None:
    whole = random_attention(24, 4, 2, 10, biased="qkvo", ops=ops)
    x, residual = (normal((2, 5, 24), seed=seed) for seed in (30, 31))
    assert_close(whole(x, residual=residual), oracle.attention(exact(x), whole) + exact(residual))
    parts = []
    for rank in range(2):
        heads, groups = slice(20 * rank, 20 * rank + 20), slice(10 * rank, 10 * rank + 10)
        biases = Biases(
            whole.biases.q[heads], whole.biases.k[groups], whole.biases.v[groups], whole.biases.o
        )
        weights = (whole.wq[heads], whole.wk[groups], whole.wv[groups], whole.wo[:, heads])
        part = GroupedQueryAttention(
            24, 2, 1, 10, *weights, rope=whole.rope, biases=biases, communicator=Rank(rank), ops=ops
        )
        parts.append(exact(part(x, residual=residual)) - 100)
    # `Rank.all_reduce` adds 100, so the parts are rounded to the float32 steps of numbers around
    # 100. With 100 on both sides, the tolerance is relative to such numbers.
    expected = oracle.attention(exact(x), whole) + exact(residual) + 100
    assert_close(mx.array(parts[0] + parts[1] + 100).astype(mx.float32), expected)


def test_refuses_positions_that_rope_was_not_made_for(ops: OpSet) -> None:
    layer = random_attention(24, 4, 2, 10, rope=RoPE(10, 4, ops=ops), ops=ops)
    cache = DenseCache()
    layer(mx.zeros((1, 3, 24)), cache=cache)
    with pytest.raises(
        ValueError, match=r"positions: expected numbers below 4, the longest text, got 3\.\.4"
    ):
        layer(mx.zeros((1, 2, 24)), cache=cache)
    assert cache.offset == 3


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (Batch.at(0, 3, 4), "q: expected 3 x 4 tokens, as the batch has, got 2 x 4"),
        (
            Batch("prefill", 3, 4, mx.zeros((3, 4), mx.int32)),
            r"positions: expected shape \(4,\) or \(2, 4\), got \(3, 4\)",
        ),
        (Batch.at(0, 2, 5), r"positions: expected a slice of 4 positions, got slice\(0, 5"),
    ],
)
def test_refuses_tokens_that_do_not_fit_the_batch(ops: OpSet, batch: Batch, words: str) -> None:
    layer, cache = random_attention(24, 4, 2, 10, ops=ops), DenseCache()
    with pytest.raises(ValueError, match=words):
        layer(mx.zeros((2, 4, 24)), batch, cache)
    assert (cache.offset, cache.arrays) == (0, [])


@pytest.mark.parametrize("kv_heads", [3, 0, 8])
def test_refuses_heads_that_do_not_share_evenly(unchecked: None, kv_heads: int) -> None:
    words = f"num_heads: expected a multiple of {kv_heads} key/value heads, got 4"
    with pytest.raises(ValueError, match=words):
        GroupedQueryAttention(8, 4, kv_heads, 6, *[mx.zeros((1, 1))] * 4, rope=RoPE(6, 9))


@pytest.mark.parametrize(
    ("name", "expected"), [("q", (24, 8)), ("k", (12, 8)), ("v", (12, 8)), ("o", (8, 24))]
)
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_refuses_a_weight_or_bias_of_another_shape(
    unchecked: None, name: str, expected: tuple[int, ...], part: str
) -> None:
    shapes = {"q": (24, 8), "k": (12, 8), "v": (12, 8), "o": (8, 24)}
    weights = {f"w{key}": mx.zeros(shape) for key, shape in shapes.items()}
    biases = Biases()
    if part == "weight":
        weights[f"w{name}"] = mx.zeros((7, 5))
        words = f"w{name}: expected shape {expected}, got (7, 5)"
    else:
        biases = Biases(**{name: mx.zeros((7,))})
        words = f"biases.{name}: expected shape {expected[:1]}, got (7,)"
    with pytest.raises(ValueError, match="expected shape") as caught:
        GroupedQueryAttention(8, 4, 2, 6, **weights, rope=RoPE(6, 9), biases=biases)  # type: ignore[arg-type]
    assert str(caught.value) == words


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_refuses_a_head_norm_of_another_size(name: str) -> None:
    weights = [mx.zeros(shape) for shape in ((24, 8), (12, 8), (12, 8), (8, 24))]
    with pytest.raises(ValueError, match=rf"{name}: expected shape \(6,\), got \(8,\)"):
        GroupedQueryAttention(8, 4, 2, 6, *weights, rope=RoPE(6, 9), **{name: mx.ones((8,))})  # type: ignore[arg-type]
