"""Attention over quantized keys and values, which the kernels dequantize as they read."""

import mlx.core as mx
import pytest
from tinyllm_ops import OpSet, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle

FORMATS = [
    *(("affine", bits, 32) for bits in (2, 3, 5, 6)),
    *(("affine", bits, group) for bits in (4, 8) for group in (32, 64, 128)),
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
]


def packed(format_: tuple[str, int, int], dtype: mx.Dtype, keys: int, seed: int) -> Weight:
    mode, bits, group = format_
    return quantize(normal((1, 2, keys, 128), dtype, seed=seed), group, bits, mode)


@pytest.mark.parametrize("format_", FORMATS, ids=str)
@pytest.mark.parametrize("lengths", [(1, 300), (3, 9), (41, 139)])
def test_reads_every_format(
    ops: OpSet, dtype: mx.Dtype, format_: tuple[str, int, int], lengths: tuple[int, int]
) -> None:
    length, keys = lengths
    q = normal((1, 6, length, 128), dtype, seed=1)
    k, v = (packed(format_, dtype, keys, seed) for seed in (2, 3))
    y = ops.attention(q, k, v, None, "causal")
    assert y.dtype == dtype
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), None, "causal"))


@pytest.mark.parametrize("length", [1, 20])
def test_keys_and_values_may_differ_in_kind(ops: OpSet, dtype: mx.Dtype, length: int) -> None:
    q, dense = normal((1, 4, length, 128), dtype, seed=1), normal((1, 2, 70, 128), dtype, seed=2)
    for k, v in (
        (dense, packed(("affine", 8, 64), dtype, 70, 3)),
        (packed(("mxfp4", 4, 32), dtype, 70, 3), dense),
        (packed(("affine", 4, 64), mx.bfloat16, 70, 3), packed(("affine", 5, 32), dtype, 70, 4)),
    ):
        y = ops.attention(q, k, v)
        assert_close(y, oracle.attention(exact(q), exact(k), exact(v)))


def test_packed_keys_of_a_cache_are_read_in_place(ops: OpSet, dtype: mx.Dtype) -> None:
    k, v = (packed(("affine", 8, 64), dtype, 90, seed)[:, :, 5:77] for seed in (2, 3))
    q = normal((1, 4, 3, 256), dtype, seed=1)[..., ::2]
    y = ops.attention(q, k, v, 0.1, "causal")
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), 0.1, "causal"))
