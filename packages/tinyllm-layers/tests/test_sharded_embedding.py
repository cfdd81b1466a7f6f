from collections.abc import Callable

import mlx.core as mx
import pytest
from tinyllm_layers import Embedding, Ranks, ShardedEmbedding
from tinyllm_ops import OpSet, Weight

IDS = mx.array([[0, 9, 3], [4, 3, 5]])


@pytest.mark.parametrize("bits", [None, 4])
def test_each_token_is_found_in_one_part(
    ops: OpSet, dtype: mx.Dtype, projection: Callable[..., Weight], bits: int | None
) -> None:
    table = projection(10, 64, dtype, seed=1, bits=bits)
    alone = Ranks(mx.distributed.init())
    parts = [
        ShardedEmbedding(held, 64, table[held.start : held.stop], alone, ops=ops)(IDS)
        for held in (range(4), range(4, 8), range(8, 10))
    ]
    whole = Embedding(10, 64, table, ops=ops)(IDS)
    assert {part.dtype for part in parts} == {whole.dtype}
    assert mx.array_equal(parts[0] + parts[1] + parts[2], whole)
    found = [(part != 0).any(axis=-1) for part in parts]
    assert found[1].tolist() == [[False, False, False], [True, False, True]]


def test_refuses_rows_of_another_number() -> None:
    alone = Ranks(mx.distributed.init())
    with pytest.raises(ValueError, match=r"weight: expected shape \(4, 8\), got \(5, 8\)"):
        ShardedEmbedding(range(4), 8, mx.zeros((5, 8)), alone)
