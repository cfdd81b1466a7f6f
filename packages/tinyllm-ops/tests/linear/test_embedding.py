import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import OpSet, QuantizationMode, quantize
from tinyllm_ops.testing import assert_close, exact, normal, oracle

IDS = [np.array(3), np.array([0, 6, 6]), np.array([[1, 2], [5, 0]]), np.zeros((2, 1, 3), np.int64)]
EMPTY = [np.zeros((0,), np.int64), np.zeros((2, 0), np.int64)]


@pytest.mark.parametrize("ids", IDS + EMPTY, ids=lambda ids: str(ids.shape))
@pytest.mark.parametrize("integer", [mx.int32, mx.uint32, mx.int64, mx.uint8])
def test_picks_a_row_for_each_id(
    ops: OpSet, dtype: mx.Dtype, ids: np.ndarray, integer: mx.Dtype
) -> None:
    w = normal((7, 24), dtype, seed=1)
    rows = ops.embedding(mx.array(ids).astype(integer), w)
    assert rows.dtype == dtype
    assert np.array_equal(exact(rows), oracle.embedding(ids, exact(w)))


@pytest.mark.parametrize("ids", IDS + EMPTY, ids=lambda ids: str(ids.shape))
@pytest.mark.parametrize(
    ("mode", "bits", "group"),
    [("affine", 4, 64), ("affine", 3, 32), ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)],
)
def test_reads_quantized_rows_back(
    ops: OpSet, dtype: mx.Dtype, ids: np.ndarray, mode: QuantizationMode, bits: int, group: int
) -> None:
    w = quantize(normal((7, 64), dtype, seed=1), group, bits, mode)
    rows = ops.embedding(mx.array(ids), w)
    assert rows.dtype == (dtype if mode == "affine" else mx.float32)
    assert_close(rows, oracle.embedding(ids, exact(w)))


@pytest.mark.parametrize(
    ("ids", "w", "words"),
    [
        (mx.array([0.5]), mx.zeros((3, 4)), r"ids: expected an integer dtype, got .*float32"),
        (mx.array([True]), mx.zeros((3, 4)), r"ids: expected an integer dtype, got .*bool"),
        (mx.array([0]), mx.zeros((3,)), r"w: expected axes V E, got shape \(3,\)"),
        (mx.array([0]), mx.zeros((1, 3, 4)), r"w: expected axes V E, got shape \(1, 3, 4\)"),
        (mx.array([0]), mx.zeros((0, 4)), r"w: expected a row for each .*, got shape \(0, 4\)"),
    ],
)
def test_refuses_ids_and_tables_that_do_not_fit(
    ops: OpSet, unchecked: None, ids: mx.array, w: mx.array, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.embedding(ids, w)
