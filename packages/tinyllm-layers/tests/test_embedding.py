from collections.abc import Callable

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from tinyllm_layers import Communicator, Embedding
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


class Recorder(Communicator):
    """A communicator that records the inputs of `all_reduce` and returns them unchanged."""

    def __init__(self) -> None:
        self.parts: list[mx.array] = []

    def all_reduce(self, part: mx.array) -> mx.array:
        self.parts.append(part)
        return part


@pytest.mark.parametrize("index_dtype", [mx.int32, mx.uint32])
@pytest.mark.parametrize("bits", [None, 4])
def test_each_token_is_found_in_one_part_of_a_shared_table(
    ops: OpSet,
    dtype: mx.Dtype,
    projection: Callable[..., Weight],
    bits: int | None,
    index_dtype: mx.Dtype,
) -> None:
    ids = mx.array([[0, 9, 3], [4, 3, 5]], dtype=index_dtype)
    table, ranks = projection(10, 64, dtype, seed=1, bits=bits), Recorder()
    for vocab in (range(4), range(4, 8), range(8, 10)):
        rows = table[vocab.start : vocab.stop]
        part = Embedding(10, 64, rows, local_vocab=vocab, communicator=ranks, ops=ops)
        assert part(ids) is ranks.parts[-1]
        h = normal((2, 64), dtype, seed=2)
        assert mx.array_equal(part.as_linear(h), ops.linear(h, rows))
    whole = Embedding(10, 64, table, ops=ops)(ids)
    parts = ranks.parts
    assert {part.dtype for part in parts} == {whole.dtype}
    assert mx.array_equal(parts[0] + parts[1] + parts[2], whole)
    found = [(part != 0).any(axis=-1) for part in parts]
    assert found[1].tolist() == [[False, False, False], [True, False, True]]


def test_a_whole_table_needs_no_sum() -> None:
    ranks = Recorder()
    Embedding(3, 2, mx.ones((3, 2)), communicator=ranks)(mx.array([1]))
    assert ranks.parts == []


def test_refuses_rows_of_another_number_than_it_holds() -> None:
    with pytest.raises(ValueError, match=r"weight: expected shape \(4, 8\), got \(5, 8\)"):
        Embedding(10, 8, mx.zeros((5, 8)), local_vocab=range(4))
