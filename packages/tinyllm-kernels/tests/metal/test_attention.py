"""Decode and prefill attention: each head dim once, each dtype at least once."""

from typing import Literal

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels.metal import METAL
from tinyllm_kernels.metal.attention.decode import MAX_SPLITS, MIN_SPLIT
from tinyllm_ops import MLX, OpSet, Phase, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle

# Head dim and dtype. Other tests cover (64, float32).
FORMATS = [
    *((80, mx.float16), (96, mx.float32), (128, mx.bfloat16)),
    *((256, mx.bfloat16), (256, mx.float32)),  # keys of 256 float32 numbers are staged in halves
]
# Head dim, dtype, (group size, bits) of the keys and (group size, bits) of the values.
PACKED = [
    (64, mx.float32, (64, 8), (64, 8)),
    (64, mx.bfloat16, (32, 2), (32, 5)),
    (96, mx.float16, (32, 4), (32, 4)),
    (128, mx.bfloat16, (128, 3), (64, 6)),
    (256, mx.float32, (64, 4), (32, 8)),
]
EDGES = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
# Queries and keys. With fewer keys than queries the first queries see no key.
TILES = [
    *((2, 2), (3, 23), (31, 31), (32, 32), (33, 33), (23, 77), (127, 129), (129, 31), (1025, 1)),
    *((2, 1023), (2, 1024), (2, 1025), (77, 127), (1023, 23), (1024, 32)),
]


def qkv(
    length: int,
    keys: int,
    dim: int = 64,
    dtype: mx.Dtype = mx.float32,
    heads: tuple[int, int] = (4, 2),
    rows: int = 1,
) -> tuple[mx.array, mx.array, mx.array]:
    q = normal((rows, heads[0], length, dim), dtype, seed=1)
    k, v = (normal((rows, heads[1], keys, dim), dtype, seed=seed) for seed in (2, 3))
    return q, k, v


def check(
    metal: OpSet, q: mx.array, k: Weight, v: Weight, mask: Literal["causal"] | None = "causal"
) -> mx.array:
    y = metal.attention(q, k, v, None, mask)
    assert (y.shape, y.dtype) == (q.shape, q.dtype)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, mask))
    return y


# EDGES, and the numbers of keys at which the number of splits changes.
@pytest.mark.parametrize(
    "keys", [*EDGES, MIN_SPLIT - 1, MIN_SPLIT, MIN_SPLIT + 1, MIN_SPLIT * MAX_SPLITS + 1]
)
def test_one_token_sees_all_keys(metal: OpSet, keys: int) -> None:
    check(metal, *qkv(1, keys))


@pytest.mark.parametrize(("dim", "dtype"), FORMATS)
@pytest.mark.parametrize("keys", [33, 300])
def test_one_token_of_each_format(metal: OpSet, dim: int, dtype: mx.Dtype, keys: int) -> None:
    check(metal, *qkv(1, keys, dim, dtype))


@pytest.mark.parametrize("heads", [(1, 1), (9, 1)], ids=str)
def test_heads_of_a_group_decode_together(metal: OpSet, heads: tuple[int, int]) -> None:
    check(metal, *qkv(1, 300, heads=heads, rows=2))


@pytest.mark.parametrize("lengths", TILES, ids=str)
def test_tokens_see_the_keys_before_them(metal: OpSet, lengths: tuple[int, int]) -> None:
    check(metal, *qkv(*lengths))


@pytest.mark.parametrize(("dim", "dtype"), FORMATS)
@pytest.mark.parametrize("lengths", [(23, 77), (33, 33)], ids=str)
def test_tokens_of_each_format(
    metal: OpSet, dim: int, dtype: mx.Dtype, lengths: tuple[int, int]
) -> None:
    check(metal, *qkv(*lengths, dim, dtype))


@pytest.mark.parametrize("lengths", [(2, 2), (33, 31), (31, 129)], ids=str)
def test_without_a_mask_tokens_see_all_keys(metal: OpSet, lengths: tuple[int, int]) -> None:
    check(metal, *qkv(*lengths), mask=None)


@pytest.mark.parametrize("heads", [(9, 3), (33, 1)], ids=str)
def test_rows_of_a_tile_are_queries_of_several_heads(metal: OpSet, heads: tuple[int, int]) -> None:
    check(metal, *qkv(5, 40, heads=heads, rows=2))


@pytest.mark.parametrize("length", [1, 6])
def test_keys_of_a_cache_are_read_in_place(metal: OpSet, length: int) -> None:
    buffers = [normal((2, 3, 64, 128), seed=seed) for seed in (1, 2)]
    q = normal((2, length, 6, 128), seed=3).swapaxes(1, 2)
    for columns in (slice(32, 96), slice(None, None, 2)):
        k, v = (buffer[:, :, 4:41, columns] for buffer in buffers)
        check(metal, q[..., columns], k, v)


@pytest.mark.parametrize(("dim", "dtype", "of_keys", "of_values"), PACKED)
@pytest.mark.parametrize("lengths", [(1, 33), (23, 77)], ids=str)
def test_packed_keys_and_values(
    metal: OpSet,
    lengths: tuple[int, int],
    dim: int,
    dtype: mx.Dtype,
    of_keys: tuple[int, int],
    of_values: tuple[int, int],
) -> None:
    q, k, v = qkv(*lengths, dim, dtype)
    check(metal, q, quantize(k, *of_keys), quantize(v, *of_values))


@pytest.mark.parametrize("keys", EDGES)
@pytest.mark.parametrize("length", [1, 3])
def test_any_number_of_packed_keys(metal: OpSet, length: int, keys: int) -> None:
    q, k, v = qkv(length, keys, dtype=mx.bfloat16)
    check(metal, q, quantize(k, 64, 4), quantize(v, 32, 8))


def test_one_packed_key_and_those_of_a_cache(metal: OpSet) -> None:
    q, k, v = qkv(1, 300, rows=2)
    packed = [quantize(x, 64, 8) for x in (k, v)]
    check(metal, q[:1, :2], *(x[:1, :1, :1] for x in packed))  # type: ignore[arg-type]  # with a scale that is a `constant`
    check(metal, q, *(x[:, :, 4:291] for x in packed))  # type: ignore[arg-type]
    turned = [quantize(x.swapaxes(1, 2), 64, 8) for x in (k, v)]
    check(metal, q, *(x.map(lambda part: part.swapaxes(1, 2)) for x in turned))  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 3])
def test_takes_any_number_of_leading_axes(metal: OpSet, length: int) -> None:
    for lead in ((), (2, 3)):
        q, k = normal((*lead, 4, length, 64), seed=1), normal((*lead, 2, 7, 64), seed=2)
        check(metal, q, k, k)


@pytest.mark.parametrize("length", [1, 20])
def test_a_row_has_the_same_result_alone_and_in_a_batch(metal: OpSet, length: int) -> None:
    q, k, v = qkv(length, 300, rows=2)
    together = metal.attention(q, k, v, None, "causal")
    for row in range(2):
        alone = metal.attention(q[row], k[row], v[row], None, "causal")
        assert mx.array_equal(together[row], alone).item()


@pytest.mark.parametrize("packed", [False, True])
def test_a_prefill_chunk_of_one_token_has_the_bits_of_a_longer_chunk(
    metal: OpSet, packed: bool
) -> None:
    q, *dense = qkv(35, 70, dtype=mx.bfloat16, heads=(6, 2))
    k, v = (quantize(x, 32, 4) for x in dense) if packed else dense
    whole = metal.attention(q, k, v, None, "causal", phase="prefill")
    for start, end in ((0, 1), (20, 21), (21, 34), (34, 35)):
        seen = slice(0, 35 + end)
        chunk = metal.attention(
            q[:, :, start:end], k[:, :, seen], v[:, :, seen], None, "causal", phase="prefill"
        )
        assert mx.array_equal(chunk, whole[:, :, start:end]).item()


@pytest.mark.parametrize("mask", [None, "causal"])
def test_several_queries_of_the_decode_phase_are_decode_steps(
    metal_checked: OpSet, mask: Literal["causal"] | None
) -> None:
    q, k, v = qkv(4, 3)  # a causal mask hides all keys from the first query
    y = metal_checked.attention(q, k, v, None, mask, phase="decode")
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, mask))
    last = metal_checked.attention(q[:, :, -1:], k, v)
    assert mx.array_equal(y[:, :, -1:], last).item()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_query_of_either_phase(metal: OpSet, phase: Phase) -> None:
    q, k, v = qkv(1, 33)
    for mask in (None, "causal"):
        y = metal.attention(q, k, v, None, mask, phase=phase)
        assert_close(y, oracle.attention(exact(q), exact(k), exact(v)))


@pytest.mark.parametrize("length", [1, 3])
def test_scores_far_apart_do_not_overflow(metal: OpSet, length: int) -> None:
    q, k, v = qkv(length, 40)
    check(metal, q * 40, k * 40, v)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("bad", [mx.nan, mx.inf, -mx.inf])
def test_nan_and_inf_reach_the_queries_that_see_them(
    metal_checked: OpSet, length: int, bad: float
) -> None:
    q, k, v = qkv(length, 40)
    k[:, :, 17, 5] = bad
    y = exact(metal_checked.attention(mx.abs(q), k, v, None, "causal"))
    assert np.isfinite(y).all() if bad == -mx.inf else np.isnan(y).all()


def test_no_keys_give_zeros(metal: OpSet) -> None:
    q, k = mx.ones((1, 2, 3, 64)), mx.zeros((1, 1, 0, 64))
    assert not metal.attention(q, k, k).any().item()


@pytest.mark.parametrize("length", [1, 5])
def test_mlx_computes_array_masks_and_other_formats(metal: OpSet, length: int) -> None:
    q, k, v = qkv(length, 9)
    packed, floating = quantize(k, 64, 8), quantize(k, 32, 4, "mxfp4")
    narrow = [x[..., :48] for x in (q, k, v)]
    for inputs in (
        (q, k, v, None, normal((length, 9), seed=4)),
        (q, k, v, None, normal((length, 9), seed=4) > 0),
        (q, packed, v, None, "causal"),
        (q, floating, floating, None, "causal"),
        (*narrow, None, None),
    ):
        assert mx.array_equal(metal.attention(*inputs), MLX.attention(*inputs)).item()


def test_errors_have_the_words_of_the_contract(unchecked: None) -> None:
    q, k, v = qkv(1, 9, heads=(3, 2))
    with pytest.raises(ValueError, match="expected a multiple of 2 key/value heads, got 3 heads"):
        METAL.attention(q, k, v)
