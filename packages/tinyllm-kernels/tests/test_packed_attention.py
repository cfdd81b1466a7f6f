"""Attention over quantized keys and values, which the kernels dequantize as they read."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_kernels import opset
from tinyllm_kernels.testing import WeightFormat
from tinyllm_ops import OpSet, PageTable, QuantizedTensor, Weight, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle, page_table

FORMATS = [
    *(("affine", bits, 32) for bits in (2, 3, 5, 6)),
    *(("affine", bits, group) for bits in (4, 8) for group in (32, 64, 128)),
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
]


def packed(format_: WeightFormat, dtype: mx.Dtype, keys: int, seed: int) -> Weight:
    mode, bits, group = format_
    return quantize(normal((1, 2, keys, 128), dtype, seed=seed), group, bits, mode)


@pytest.mark.parametrize("format_", FORMATS, ids=str)
@pytest.mark.parametrize("lengths", [(1, 300), (3, 9), (41, 139)])
def test_reads_every_format(
    ops: OpSet, dtype: mx.Dtype, format_: WeightFormat, lengths: tuple[int, int]
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


@given(
    keys=st.lists(st.integers(1, 330), min_size=1, max_size=4),
    page=st.integers(1, 40),
    heads=st.sampled_from([(1, 1), (3, 1), (8, 4), (14, 2), (8, 1)]),
    dim=st.sampled_from([64, 128, 192, 256]),
    group=st.sampled_from([32, 64]),
    bits=st.tuples(st.sampled_from([4, 8]), st.sampled_from([4, 8])),
    window=st.sampled_from([None, 5, 100]),
)
@settings(max_examples=100)
def test_decodes_any_requests_as_each_alone(
    keys: list[int],
    page: int,
    heads: tuple[int, int],
    dim: int,
    group: int,
    bits: tuple[int, int],
    window: int | None,
) -> None:
    cpu = opset("cpu")
    table = page_table([(1, count) for count in keys], page, seed=1)
    q = normal((table.count, heads[0], dim), mx.bfloat16, seed=2)
    shape = (table.num_pages, heads[1], page, dim)
    k = quantize(normal(shape, mx.bfloat16, seed=3), group, bits[0])
    v = quantize(normal(shape, mx.bfloat16, seed=4), 64, bits[1])
    arrays = table.arrays
    where = map(np.array, (arrays.block_tables, arrays.cu_seqlens_q, arrays.seq_lens))
    expected = oracle.paged_attention(exact(q), exact(k), exact(v), *where, None, window)  # type: ignore[arg-type, call-arg]
    y = cpu.paged_attention(q, k, v, table, window=window)
    assert_close(y, expected)
    for r, count in enumerate(keys):
        chunk = (table.block_tables[r], count - 1, count)
        alone = PageTable.of([chunk], num_pages=table.num_pages, page_size=page)
        one = cpu.paged_attention(q[r : r + 1], k, v, alone, window=window)
        assert mx.array_equal(one, y[r : r + 1]).item()


def with_number(w: Weight, field: str, at: int, number: float) -> Weight:
    """Set the scale or bias of a row of head 0 and its second group."""
    assert isinstance(w, QuantizedTensor)
    arrays = {name: mx.array(getattr(w, name)) for name in ("scales", "biases")}
    arrays[field][0, 0, at, 1] = number
    return QuantizedTensor(w.packed, arrays["scales"], arrays["biases"], w.group_size, w.bits)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [mx.nan, mx.inf, -mx.inf])
@pytest.mark.parametrize("field", ["scales", "biases"])
@pytest.mark.parametrize("at", [0, 77, 299])
def test_a_bad_number_reaches_only_its_group_and_head(
    ops: OpSet, dtype: mx.Dtype, bits: int, bad: float, field: str, at: int
) -> None:
    q = normal((1, 4, 1, 128), dtype, seed=1)
    k, v = (packed(("affine", bits, 64), dtype, 300, seed) for seed in (2, 3))
    clean = ops.attention(q, k, v)
    y = ops.attention(q, k, with_number(v, field, at, bad))
    assert not np.isfinite(exact(y[:, :2, :, 64:])).any()
    assert_close(y[:, :2, :, :64], exact(clean[:, :2, :, :64]))
    assert mx.array_equal(y[:, 2:], clean[:, 2:]).item()
    y = ops.attention(q, with_number(k, field, at, bad), v)
    assert np.isnan(exact(y[:, :2])).all()
    assert mx.array_equal(y[:, 2:], clean[:, 2:]).item()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_bad_query_reaches_only_its_heads(ops: OpSet, dtype: mx.Dtype, bits: int) -> None:
    q = normal((1, 4, 1, 128), dtype, seed=1)
    k, v = (packed(("affine", bits, 64), dtype, 300, seed) for seed in (2, 3))
    clean = ops.attention(q, k, v)
    q[0, 0, 0, 70] = mx.nan
    y = ops.attention(q, k, v)
    assert np.isnan(exact(y[:, 0])).all()
    assert_close(y[:, 1], exact(clean[:, 1]))
    assert mx.array_equal(y[:, 2:], clean[:, 2:]).item()


def test_memory_of_earlier_calls_is_not_read(ops: OpSet, dtype: mx.Dtype) -> None:
    q, k = normal((1, 4, 1, 128), dtype, seed=1), normal((1, 2, 250, 128), dtype, seed=2)
    v = packed(("affine", 8, 64), dtype, 250, 3)
    for _ in range(4):  # so that the scratch memory of each thread has NaN weights
        mx.eval(ops.attention(q * mx.nan, k, v))
    y = ops.attention(q, k[:, :, :70], v[:, :, :70])
    assert_close(y, oracle.attention(exact(q), exact(k[:, :, :70]), exact(v[:, :, :70])))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1e-33, 1e-30, 1e-3, 1e3])
def test_rows_of_any_size_keep_their_accuracy(
    ops: OpSet, dtype: mx.Dtype, bits: int, size: float
) -> None:
    """Queries with one large feature, and values of which one has all the weight."""
    if dtype == mx.float16 and size < 1e-20:
        pytest.skip("such numbers are zero in float16")
    q = normal((1, 4, 1, 128), dtype, seed=1)
    q[..., 3] *= 100
    k = packed(("affine", bits, 64), dtype, 300, 2)
    v = quantize(normal((1, 2, 300, 128), dtype, seed=3) * size, 64, bits)
    y = ops.attention(q, k, v, 0.3)
    assert_close(y, oracle.attention(exact(q), exact(k), exact(v), 0.3))
