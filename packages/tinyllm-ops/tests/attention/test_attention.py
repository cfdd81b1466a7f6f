from typing import Literal

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import (
    MLX,
    Mask,
    OpSet,
    QuantizationMode,
    QuantizedTensor,
    quantize,
    scaled_dot_product_attention_simple,
)
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle, rounded

HEADS = [(1, 1), (2, 1), (6, 3), (7, 7), (14, 2), (40, 1), (40, 8), (40, 40)]
LENGTHS = [(1, 1), (1, 9), (5, 5), (3, 7), (7, 3), (13, 33)]


def qkv(
    batch: tuple[int, ...],
    heads: tuple[int, int],
    lengths: tuple[int, int],
    dim: int,
    dtype: mx.Dtype,
    magnitude: float = 1.0,
) -> tuple[mx.array, mx.array, mx.array]:
    (h, h_kv), (length, keys) = heads, lengths
    return (
        normal((*batch, h, length, dim), dtype, seed=1, magnitude=magnitude),
        normal((*batch, h_kv, keys, dim), dtype, seed=2, magnitude=magnitude),
        normal((*batch, h_kv, keys, dim), dtype, seed=3, magnitude=magnitude),
    )


def expected(
    q: mx.array,
    k: mx.array | QuantizedTensor,
    v: mx.array | QuantizedTensor,
    scale: float | None = None,
    mask: Mask = None,
) -> np.ndarray:
    added = exact(mask) if isinstance(mask, mx.array) else mask
    return oracle.attention(exact(q), exact(k), exact(v), scale, added)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("mask", [None, "causal"])
def test_query_heads_share_key_value_heads_by_group(
    ops: OpSet, dtype: mx.Dtype, heads: tuple[int, int], mask: Literal["causal"] | None
) -> None:
    q, k, v = qkv((2,), heads, (3, 7), 20, dtype)
    out = ops.attention(q, k, v, mask=mask)
    assert out.dtype == dtype
    assert_close(out, expected(q, k, v, mask=mask))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mask", [None, "causal"])
def test_queries_and_keys_may_differ_in_length(
    ops: OpSet, dtype: mx.Dtype, lengths: tuple[int, int], mask: Literal["causal"] | None
) -> None:
    q, k, v = qkv((2,), (6, 2), lengths, 64, dtype)
    assert_close(ops.attention(q, k, v, mask=mask), expected(q, k, v, mask=mask))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 2)])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_takes_any_leading_axes(
    ops: OpSet, dtype: mx.Dtype, batch: tuple[int, ...], mask: Literal["causal"] | None
) -> None:
    q, k, v = qkv(batch, (4, 2), (3, 5), 16, dtype)
    assert_close(ops.attention(q, k, v, mask=mask), expected(q, k, v, mask=mask))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (4, 1, 5), (1, 3, 1), (2, 1, 3, 5), (2, 4, 3, 5)])
def test_adds_a_mask_of_any_shape_that_broadcasts(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...]
) -> None:
    q, k, v = qkv((2,), (4, 2), (3, 5), 16, dtype)
    mask = normal(shape, dtype, seed=4)
    assert_close(ops.attention(q, k, v, mask=mask), expected(q, k, v, mask=mask))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (4, 1, 5), (1, 3, 1), (2, 1, 3, 5), (2, 4, 3, 5)])
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_a_boolean_mask_is_true_where_a_key_is_visible(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], form: str
) -> None:
    q, *kv = qkv((2,), (4, 2), (3, 5), 64, dtype)
    k, v = kv if form == "dense" else map(quantize, kv)
    visible = mx.array(np.random.default_rng(5).random(shape) < 0.6)
    added = mx.where(visible, 0.0, -mx.inf)
    out = ops.attention(q, k, v, mask=visible)
    assert_close(out, expected(q, k, v, mask=added))
    assert mx.array_equal(out, ops.attention(q, k, v, mask=added))


def test_queries_that_a_boolean_mask_leaves_without_a_key_are_zeros(
    ops: OpSet, dtype: mx.Dtype
) -> None:
    q, k, v = qkv((2,), (4, 2), (5, 3), 16, dtype)
    visible = mx.arange(5)[:, None] != mx.array([3, 3, 3])
    out = exact(ops.attention(q, k, v, mask=visible))
    assert not out[:, :, 3].any()
    assert np.abs(out[:, :, [0, 1, 2, 4]]).max(axis=-1).min() > 0


@given(
    batch=st.lists(st.integers(0, 3), max_size=2),
    h_kv=st.integers(1, 5),
    group=st.integers(1, 8),
    length=st.integers(0, 9),
    keys=st.integers(0, 9),
    dim=st.integers(1, 40),
    mask=st.sampled_from([None, "causal", "array"]),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=80)
def test_takes_any_shape(
    batch: list[int],
    h_kv: int,
    group: int,
    length: int,
    keys: int,
    dim: int,
    mask: Literal["causal", "array"] | None,
    opset: OpSet,
    dtype: mx.Dtype,
) -> None:
    q, k, v = qkv((*batch,), (h_kv * group, h_kv), (length, keys), dim, dtype)
    chosen = normal((length, keys), dtype, seed=4) if mask == "array" else mask
    assert_close(opset.attention(q, k, v, mask=chosen), expected(q, k, v, mask=chosen))


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
def test_multiplies_the_scores_by_the_given_scale(
    ops: OpSet, dtype: mx.Dtype, scale: float
) -> None:
    q, k, v = qkv((1,), (4, 2), (3, 5), 16, dtype)
    assert_close(ops.attention(q, k, v, scale=scale), expected(q, k, v, scale=scale))


def test_rows_without_visible_keys_are_zeros(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k, v = qkv((2,), (4, 2), (5, 3), 16, dtype)
    causal = ops.attention(q, k, v, mask="causal")  # the first two queries stand before every key
    assert_close(causal, expected(q, k, v, mask="causal"))
    assert not exact(causal)[:, :, :2].any()

    mask = rounded(np.where(np.arange(5)[:, None] == [3, 3, 3], -np.inf, 0.0), dtype)
    masked = ops.attention(q, k, v, mask=mask)
    assert_close(masked, expected(q, k, v, mask=mask))
    assert not exact(masked)[:, :, 3].any()


@pytest.mark.parametrize("kept", ["k", "v", "both"])
@pytest.mark.parametrize(
    ("mode", "bits", "group"), [("affine", 8, 64), ("affine", 4, 32), ("mxfp8", 8, 32)]
)
@pytest.mark.parametrize("lengths", [(1, 9), (7, 7), (6, 2)])
def test_reads_quantized_keys_and_values(
    ops: OpSet,
    dtype: mx.Dtype,
    kept: str,
    mode: QuantizationMode,
    bits: int,
    group: int,
    lengths: tuple[int, int],
) -> None:
    q, k, v = qkv((2,), (6, 2), lengths, 64, dtype)
    keys = k if kept == "v" else quantize(k, group, bits, mode)
    values = v if kept == "k" else quantize(v, group, bits, mode)
    additive = normal((2, 6, *lengths), dtype, seed=4)
    for mask in (None, "causal", additive):
        out = ops.attention(q, keys, values, mask=mask)
        assert out.dtype == dtype
        assert_close(out, expected(q, keys, values, mask=mask))


@pytest.mark.parametrize(("mode", "bits"), [("affine", 4), ("mxfp8", 8)])
def test_packed_keys_and_values_are_dequantized_for_cuda(
    monkeypatch: pytest.MonkeyPatch, dtype: mx.Dtype, mode: QuantizationMode, bits: int
) -> None:
    monkeypatch.setattr("tinyllm_ops.mlx._on_cuda", lambda: True)
    monkeypatch.setattr(mx, "quantized_matmul", None)
    q, *kv = qkv((2,), (6, 2), (3, 9), 64, dtype)
    k, v = (quantize(part, 32, bits, mode) for part in kv)
    for keys, values in ((k, v), (k, kv[1]), (kv[0], v)):
        out = MLX.attention(q, keys, values, mask="causal")
        assert out.dtype == dtype
        assert_close(out, expected(q, keys, values, mask="causal"))


@pytest.mark.parametrize("magnitude", [1e-3, 30.0])
def test_keeps_its_precision_when_scores_are_tiny_or_huge(
    ops: OpSet, dtype: mx.Dtype, magnitude: float
) -> None:
    q, k, v = qkv((2,), (8, 2), (7, 33), 64, dtype, magnitude)
    additive = rounded(oracle.causal_mask(7, 33), dtype)
    for mask in ("causal", additive):
        assert_close(ops.attention(q, k, v, mask=mask), expected(q, k, v, mask="causal"))


@pytest.mark.parametrize("masked", [True, False])
def test_scores_beyond_float16_do_not_overflow(ops: OpSet, dtype: mx.Dtype, masked: bool) -> None:
    q = mx.full((1, 1, 1, 16), 200.0, dtype)
    k = rounded(np.array([200.0, 100.0, -200.0]).reshape(1, 1, 3, 1) * np.ones(16), dtype)
    v = normal((1, 1, 3, 16), dtype, seed=1)
    mask = mx.zeros((1, 3), dtype) if masked else None
    out = ops.attention(q, k, v, scale=1.0, mask=mask)  # scores 640,000, 320,000, -640,000
    assert_close(out, exact(v)[:, :, :1])


def test_a_large_finite_mask_is_no_infinity_in_any_dtype(ops: OpSet, dtype: mx.Dtype) -> None:
    v = normal((1, 1, 4, 8), dtype, seed=1)
    out = ops.attention(mx.zeros((1, 1, 1, 8), dtype), v, v, mask=mx.full((1, 4), -1e9))
    assert_close(out, exact(v).mean(axis=2, keepdims=True))


@pytest.mark.parametrize("lengths", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("batch", [(), (2,), (0,)])
def test_no_keys_give_zeros_and_no_queries_give_an_empty_result(
    ops: OpSet, dtype: mx.Dtype, lengths: tuple[int, int], batch: tuple[int, ...]
) -> None:
    q, k, v = qkv(batch, (4, 2), lengths, 64, dtype)
    for keys, values in ((k, v), (quantize(k), quantize(v))):
        for mask in (None, "causal", mx.zeros(lengths, dtype)):
            out = ops.attention(q, keys, values, mask=mask)
            assert (out.shape, out.dtype) == (q.shape, dtype)
            assert not exact(out).any()


@pytest.mark.parametrize("mask", [None, "causal"])
def test_equals_mx_fast_in_float32(ops: OpSet, mask: Literal["causal"] | None) -> None:
    q, k, v = qkv((2,), (8, 2), (5, 9), 64, mx.float32)
    fast = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask=mask)
    assert_close(ops.attention(q, k, v, mask=mask), exact(fast))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_simple_attention_has_one_key_head_for_each_query_head(
    device: mx.Device, dtype: mx.Dtype, batch: tuple[int, ...], lengths: tuple[int, int]
) -> None:
    q = normal((*batch, lengths[0], 24), dtype, seed=1)
    k, v = (normal((*batch, lengths[1], 24), dtype, seed=seed) for seed in (2, 3))
    causal = rounded(oracle.causal_mask(*lengths), dtype)
    for mask in (None, causal, causal == 0):
        for scale in (None, 0.3):
            out = scaled_dot_product_attention_simple(q, k, v, scale, mask)
            added = None if mask is None else exact(causal)
            assert out.dtype == dtype
            assert_close(out, oracle.attention_simple(exact(q), exact(k), exact(v), scale, added))


Q, KV = mx.zeros((2, 4, 3, 8)), mx.zeros((2, 2, 5, 8))
HALF = mx.zeros((2, 2, 5, 8), mx.float16)


@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "words"),
    [
        (Q[0, 0], KV, KV, None, r"q: expected axes \(..., heads, tokens, D\), got \(3, 8\)"),
        (Q, KV[0, 0], KV, None, r"k: expected axes \(..., heads, tokens, D\), got \(5, 8\)"),
        (Q, KV[:1], KV, None, r"k: expected shape \(2, 2, 5, 8\), got \(1, 2, 5, 8\)"),
        (Q, KV[..., :4], KV, None, r"k: expected shape \(2, 2, 5, 8\), got \(2, 2, 5, 4\)"),
        (Q, KV, KV[:, :, :4], None, r"v: expected shape \(2, 2, 5, 8\), got \(2, 2, 4, 8\)"),
        (Q[..., :0], KV[..., :0], KV[..., :0], None, r"q: expected at least one feature per head"),
        (Q[:, :3], KV, KV, None, r"q: expected a multiple of 2 key/value heads, got 3 heads"),
        (Q, KV[:, :0], KV[:, :0], None, r"a multiple of 0 key/value heads, got 4 heads"),
        (Q, HALF, KV, None, r"k: expected dtype .*float32, got .*float16"),
        (Q, KV, HALF, None, r"v: expected dtype .*float32, got .*float16"),
        (Q, KV, KV, "full", r'mask: expected "causal", an array or None, got \'full\''),
        (Q, KV, KV, mx.zeros((3, 4)), r"broadcasts to \(2, 4, 3, 5\), got \(3, 4\)"),
        (Q, KV, KV, mx.zeros((1, 2, 4, 3, 5)), r"broadcasts to .*, got \(1, 2, 4, 3, 5\)"),
        (Q, KV, KV, mx.ones((3, 4), mx.bool_), r"broadcasts to \(2, 4, 3, 5\), got \(3, 4\)"),
        (Q, KV, KV, mx.ones((3, 5), mx.int32), r"mask: expected float32, .*, got .*int32"),
        (Q, KV, KV, np.zeros((3, 5)), r'mask: expected "causal", an array or None, got ndarray'),
        (Q, KV, KV[0, 0], None, r"v: expected axes \(..., heads, tokens, D\), got \(5, 8\)"),
    ],
)
def test_refuses_arguments_that_do_not_fit(
    ops: OpSet,
    unchecked: None,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array | str | None,
    words: str,
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.attention(q, k, v, mask=mask)  # type: ignore[arg-type] # "full"


@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "words"),
    [
        (mx.zeros(8), Q, Q, None, r"q: expected axes \(..., tokens, D\), got \(8,\)"),
        (Q, KV, KV, None, r"k: expected shape \(2, 4, 5, 8\), got \(2, 2, 5, 8\)"),
        (Q, Q, Q[..., :2, :], None, r"v: expected shape \(2, 4, 3, 8\), got \(2, 4, 2, 8\)"),
        (Q, Q.astype(mx.float16), Q, None, r"k: expected dtype .*float32, got .*float16"),
        (Q, Q, Q.astype(mx.float16), None, r"v: expected dtype .*float32, got .*float16"),
        (Q, Q, Q, mx.zeros((3, 4)), r"broadcasts to \(2, 4, 3, 3\), got \(3, 4\)"),
        (Q, Q, Q, "causal", r"mask: expected an array or None, got 'causal': pass `causal_mask"),
    ],
)
def test_simple_attention_refuses_arguments_that_do_not_fit(
    unchecked: None, q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        scaled_dot_product_attention_simple(q, k, v, mask=mask)  # type: ignore[arg-type]  # "causal"
