from collections.abc import Callable
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import Biases, DenseCache, GroupedQueryAttention, RoPE
from tinyllm_ops import OpSet, QuantizedTensor, Weight, dequantize
from tinyllm_ops.testing import assert_close, exact, normal

Make = Callable[..., GroupedQueryAttention]
Oracle = Callable[..., np.ndarray]

HEADS = [(1, 1), (2, 1), (3, 3), (7, 1), (14, 2), (16, 8), (40, 8), (40, 40)]


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("biased", ["", "qkv", "qkvo"])
@pytest.mark.parametrize("normed", [False, True])
def test_is_the_attention_of_every_qwen(
    ops: OpSet,
    dtype: mx.Dtype,
    make_attention: Make,
    attention_oracle: Oracle,
    heads: int,
    kv_heads: int,
    biased: str,
    normed: bool,
) -> None:
    layer = make_attention(
        24, heads, kv_heads, 10, biased=biased, normed=normed, dtype=dtype, ops=ops
    )
    x = normal((2, 9, 24), dtype, seed=30)
    y = layer(x, DenseCache())
    assert y.dtype == dtype
    assert_close(y, attention_oracle(layer, exact(x)))


@pytest.mark.parametrize("bits", [4, 8])
def test_reads_quantized_weights_as_the_numbers_they_stand_for(
    ops: OpSet, dtype: mx.Dtype, make_attention: Make, attention_oracle: Oracle, bits: int
) -> None:
    layer = make_attention(64, 6, 2, 32, biased="qkv", normed=True, dtype=dtype, bits=bits, ops=ops)
    x = normal((2, 5, 64), dtype, seed=30)
    assert_close(layer(x, DenseCache()), attention_oracle(layer, exact(x)))


def test_of_quantized_weights_equals_its_dequantized_self(ops: OpSet, make_attention: Make) -> None:
    packed = make_attention(64, 6, 2, 32, bits=4, ops=ops)

    def dense(w: Weight) -> mx.array:
        assert isinstance(w, QuantizedTensor)
        return dequantize(w)

    weights = [dense(w) for w in (packed.wq, packed.wk, packed.wv, packed.wo)]
    plain = GroupedQueryAttention(64, 6, 2, 32, *weights, rope=packed.rope, ops=ops)
    x = normal((2, 5, 64), seed=30)
    assert_close(packed(x, DenseCache()), exact(plain(x, DenseCache())))


@pytest.mark.parametrize("edges", [(0, 4, 11), (0, 1, 2, 11), (0, 10, 11), (0, 0, 11, 11)])
def test_takes_its_positions_from_the_cache(
    ops: OpSet, make_attention: Make, attention_oracle: Oracle, edges: tuple[int, ...]
) -> None:
    layer = make_attention(24, 4, 2, 10, biased="qkv", normed=True, ops=ops)
    x = normal((3, 11, 24), seed=30)
    cache = DenseCache()
    y = mx.concatenate([layer(x[:, a:b], cache) for a, b in pairwise(edges)], axis=1)
    assert_close(y, attention_oracle(layer, exact(x)))


def test_of_no_tokens_is_no_tokens(ops: OpSet, dtype: mx.Dtype, make_attention: Make) -> None:
    layer, cache = make_attention(24, 4, 2, 10, dtype=dtype, ops=ops), DenseCache()
    y = layer(mx.zeros((2, 0, 24), dtype), cache)
    assert (y.shape, y.dtype, cache.offset) == ((2, 0, 24), dtype, 0)


def test_refuses_positions_that_rope_was_not_made_for(ops: OpSet, make_attention: Make) -> None:
    layer = make_attention(24, 4, 2, 10, ops=ops)
    layer.rope = RoPE(10, 4, ops=ops)
    cache = DenseCache()
    layer(mx.zeros((1, 3, 24)), cache)
    with pytest.raises(ValueError, match=r"offset: expected positions below 4, got 3\.\.4"):
        layer(mx.zeros((1, 2, 24)), cache)
    assert cache.offset == 3


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
        GroupedQueryAttention(8, 4, 2, 6, **weights, rope=RoPE(6, 9), biases=biases)
    assert str(caught.value) == words
