from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_layers import Batch, Communicator, DenseCache, RecurrentCache, RotatingCache
from tinyllm_layers.testing import oracle, packed, random_gated_attention, random_pages
from tinyllm_ops import OpSet, PageTable
from tinyllm_ops.testing import assert_close, exact, normal


@pytest.mark.parametrize("rotary_dims", [2, 8, 32])
@pytest.mark.parametrize("bits", [None, 4])
def test_scales_the_output_of_every_head_by_its_gate(
    ops: OpSet, dtype: mx.Dtype, bits: int | None, rotary_dims: int
) -> None:
    layer = random_gated_attention(rotary_dims=rotary_dims, dtype=dtype, pack=packed(bits), ops=ops)
    x = normal((2, 9, 64), dtype, seed=30)
    y = layer(x, Batch.at(0, 2, 9), DenseCache())
    assert y.dtype == dtype
    assert_close(y, oracle.gated_attention(exact(x), layer))
    assert mx.array_equal(layer(x), y)  # without a cache: the same bits


def test_heads_may_have_256_features(ops: OpSet, dtype: mx.Dtype) -> None:
    layer = random_gated_attention(64, 4, 1, 256, 64, dtype=dtype, ops=ops)
    x = normal((1, 9, 64), dtype, seed=30)
    assert_close(layer(x), oracle.gated_attention(exact(x), layer))


@pytest.mark.parametrize("edges", [(0, 4, 11), (0, 1, 2, 11), (0, 0, 11, 11)])
def test_continues_after_the_tokens_in_the_cache(ops: OpSet, edges: tuple[int, ...]) -> None:
    layer, cache = random_gated_attention(ops=ops), DenseCache()
    x = normal((3, 11, 64), seed=30)
    y = mx.concatenate([layer(x[:, a:b], cache=cache) for a, b in pairwise(edges)], axis=1)
    assert_close(y, oracle.gated_attention(exact(x), layer))


def test_reads_keys_and_values_of_pages(ops: OpSet) -> None:
    layer = random_gated_attention(ops=ops)
    x, cache = normal((1, 7, 64), seed=30), random_pages(layer, 5, 4, seed=1)
    outs = []
    for start, stop in ((0, 5), (5, 6), (6, 7)):
        table = PageTable.of([([3, 1], start, stop)], num_pages=5, page_size=4)
        batch = Batch.paged(table, "prefill" if stop - start > 1 else "decode")
        outs.append(layer(x[:, start:stop], batch, cache))
    assert_close(mx.concatenate(outs, axis=1), oracle.gated_attention(exact(x), layer))


def test_the_phase_of_the_batch_reaches_every_op_that_rounds_by_it(ops: OpSet) -> None:
    phases: list[str | None] = []

    def linear(*args: Any, phase: Any = None, **kwargs: Any) -> Any:
        phases.append(phase)
        return ops.linear(*args, phase=phase, **kwargs)

    layer = random_gated_attention(ops=replace(ops, linear=linear))
    for phase in ("prefill", "decode"):
        phases.clear()
        layer(mx.zeros((1, 1, 64)), Batch.at(5, 1, 1, phase), RotatingCache(9))
        assert phases == [phase] * 5


class Rank(Communicator):
    """A communicator for one of two ranks. `all_reduce` adds 100, so that tests see each call."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce(self, part: mx.array) -> mx.array:
        return part + 100


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_alone_adds_the_residual(ops: OpSet, rank: int) -> None:
    layer = random_gated_attention(communicator=Rank(rank), ops=ops)
    x, residual = (normal((2, 5, 64), seed=seed) for seed in (30, 31))
    expected = oracle.gated_attention(exact(x), layer) + (exact(residual) if rank == 0 else 0)
    assert_close(layer(x, residual=residual), expected + 100)


def test_refuses_gates_of_another_shape(unchecked: None) -> None:
    layer = random_gated_attention()
    with pytest.raises(ValueError, match=r"wg: expected shape \(128, 64\), got \(64, 64\)"):
        replace(layer, wg=mx.zeros((64, 64)))


def test_refuses_a_cache_of_states(ops: OpSet) -> None:
    layer = random_gated_attention(ops=ops)
    for each in (layer, layer.attention):
        with pytest.raises(ValueError, match=r"cache: expected keys .* got RecurrentCache: make"):
            each(mx.zeros((1, 2, 64)), cache=RecurrentCache())


def test_refuses_more_rotated_features_than_a_head_has() -> None:
    with pytest.raises(ValueError, match=r"rope: expected at most head_dim 32 .*, got 34"):
        random_gated_attention(rotary_dims=34)
