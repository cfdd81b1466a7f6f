from collections.abc import Callable

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from tinyllm_layers import Embedding
from tinyllm_ops import OpSet, Weight
from tinyllm_ops.testing import assert_close, exact, normal, oracle


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (1, 2, 3), (0,)])
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_looks_up_one_row_for_each_id(
    ops: OpSet,
    dtype: mx.Dtype,
    projection: Callable[..., Weight],
    shape: tuple[int, ...],
    bits: int | None,
) -> None:
    table = projection(11, 64, dtype, seed=1, bits=bits)
    ids = np.random.default_rng(2).integers(0, 11, shape)
    y = Embedding(11, 64, table, ops=ops)(mx.array(ids, dtype=mx.int32))
    assert y.dtype == dtype
    assert_close(y, oracle.embedding(ids, exact(table)))


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,)])
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_scores_each_token_as_a_tied_head(
    ops: OpSet,
    dtype: mx.Dtype,
    projection: Callable[..., Weight],
    lead: tuple[int, ...],
    bits: int | None,
) -> None:
    table = projection(11, 64, dtype, seed=1, bits=bits)
    h = normal((*lead, 64), dtype, seed=2)
    y = Embedding(11, 64, table, ops=ops).as_linear(h)
    assert y.dtype == dtype
    assert_close(y, oracle.linear(exact(h), exact(table)))


def test_equals_mlx_nn(ops: OpSet) -> None:
    theirs = mlx.nn.Embedding(11, 9)
    ours = Embedding(11, 9, theirs.weight, ops=ops)
    ids, h = mx.array([[3, 0], [10, 3]]), normal((2, 9), seed=1)
    assert_close(ours(ids), exact(theirs(ids)))
    assert_close(ours.as_linear(h), exact(theirs.as_linear(h)))


@pytest.mark.parametrize("shape", [(11, 8), (9, 11), (11,)])
def test_refuses_a_table_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"weight: expected shape \(11, 9\), got \("):
        Embedding(11, 9, mx.zeros(shape))
