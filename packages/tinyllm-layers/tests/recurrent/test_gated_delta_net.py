from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_layers import (
    Batch,
    Communicator,
    DenseCache,
    GatedDeltaNet,
    LayerStack,
    RecurrentCache,
    RecurrentPool,
)
from tinyllm_layers.testing import (
    oracle,
    packed,
    random_decoder_layer,
    random_gated_delta_net,
)
from tinyllm_ops import NO_STATE, OpSet, PageTable, StateTable
from tinyllm_ops.testing import assert_close, exact, normal

HEADS = [(1, 1), (2, 2), (2, 4), (3, 6), (1, 5)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("kernel", [2, 4])
def test_is_the_layer_of_the_paper(
    ops: OpSet, dtype: mx.Dtype, heads: tuple[int, int], kernel: int
) -> None:
    layer = random_gated_delta_net(24, *heads, kernel=kernel, dtype=dtype, ops=ops)
    if dtype != mx.float32:
        # If q and k of a text are almost orthogonal, the output of a head is almost zero, and the
        # norm magnifies the rounding of q and k. A larger eps bounds the magnification.
        layer = replace(layer, norm_eps=0.01)
    x = normal((2, 9, 24), dtype, seed=30)
    y = layer(x, Batch.at(0, 2, 9), RecurrentCache())
    assert y.dtype == dtype
    assert_close(y, oracle.gated_delta_net(exact(x), layer))
    assert mx.array_equal(layer(x), y)  # without a cache: the same bits


@pytest.mark.parametrize("bits", [4, 8])
def test_reads_quantized_weights_as_the_numbers_they_stand_for(
    ops: OpSet, dtype: mx.Dtype, bits: int
) -> None:
    layer = random_gated_delta_net(64, dtype=dtype, pack=packed(bits), ops=ops)
    x = normal((2, 5, 64), dtype, seed=30)
    assert_close(layer(x), oracle.gated_delta_net(exact(x), layer))


@pytest.mark.parametrize("edges", [(0, 4, 11), (0, 1, 2, 11), (0, 10, 11), (0, 0, 11, 11)])
def test_continues_after_the_tokens_that_the_cache_has_seen(
    ops: OpSet, edges: tuple[int, ...]
) -> None:
    layer, cache = random_gated_delta_net(24, ops=ops), RecurrentCache()
    x = normal((3, 11, 24), seed=30)
    y = mx.concatenate([layer(x[:, a:b], cache=cache) for a, b in pairwise(edges)], axis=1)
    assert_close(y, oracle.gated_delta_net(exact(x), layer))
    assert cache.offset == 11


@given(cuts=st.lists(st.integers(1, 89), max_size=6), rows=st.integers(1, 3), decode=st.booleans())
@settings(max_examples=20)
def test_any_chunks_give_the_bits_of_the_whole_text(
    exact_ops: OpSet, cuts: list[int], rows: int, decode: bool
) -> None:
    layer, cache = random_gated_delta_net(24, ops=exact_ops), RecurrentCache()
    x = normal((rows, 90, 24), seed=30)
    outs = [
        layer(x[:, a:b], Batch.at(a, rows, b - a, "decode" if decode and a else None), cache)
        for a, b in pairwise(sorted({0, 90, *cuts}))
    ]
    assert mx.array_equal(mx.concatenate(outs, axis=1), layer(x))


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    order=st.permutations(range(10)),
)
@settings(max_examples=20)
def test_neighbors_and_slots_of_a_pool_change_no_bit(
    exact_ops: OpSet, lengths: list[int], order: list[int]
) -> None:
    layer = random_gated_delta_net(24, ops=exact_ops)
    pool = RecurrentPool.empty(10, layer.state_shape)
    texts = [normal((1, 2 * length, 24), seed=i) for i, length in enumerate(lengths)]
    outs: list[list[mx.array]] = [[] for _ in texts]
    for start in (True, False):
        chunks = [
            (NO_STATE if start else order[i], length, {length: order[i]})
            for i, length in enumerate(lengths)
        ]
        states = StateTable.of(chunks, num_slots=10)
        parts = [
            text[:, : length if start else None][:, 0 if start else length :]
            for text, length in zip(texts, lengths, strict=True)
        ]
        x = mx.concatenate(parts, axis=1)
        y = layer(
            x, Batch("prefill", 1, x.shape[1], slice(0, x.shape[1]), state_table=states), pool
        )
        for out, (first, stop) in zip(outs, pairwise(states.cu_seqlens), strict=True):
            out.append(y[:, first:stop])
    for text, out in zip(texts, outs, strict=True):
        assert mx.array_equal(mx.concatenate(out, axis=1), layer(text))


def test_rows_of_a_decode_step_with_drafts_are_one_sequence_in_the_pool(exact_ops: OpSet) -> None:
    layer = random_gated_delta_net(24, ops=exact_ops)
    pool, x = RecurrentPool.empty(4, layer.state_shape), normal((1, 8, 24), seed=1)
    whole = layer(x)
    prompt = StateTable.of([(NO_STATE, 5, {5: 0})], num_slots=4)
    layer(x[:, :5], Batch("prefill", 1, 5, slice(0, 5), state_table=prompt), pool)
    # Three rows of one token in the page table are one sequence of three tokens in the state table.
    pages = PageTable.of([([0], at, at + 1) for at in (5, 6, 7)], num_pages=1, page_size=8)
    states = StateTable.of([(0, 3, {1: 1, 2: 2, 3: 3})], num_slots=4)
    batch = Batch.paged(pages, "decode", states)
    y = layer(x[0, 5:, None], batch, pool)
    assert mx.array_equal(y[:, 0], whole[0, 5:])
    # One draft is accepted: the text goes on from the state after the second row.
    pages = PageTable.of([([0], 7, 8)], num_pages=1, page_size=8)
    again = Batch.paged(pages, "decode", StateTable.of([(2, 1, {1: 0})], num_slots=4))
    assert mx.array_equal(layer(x[:, 7:], again, pool), whole[:, 7:])


def test_is_a_half_of_a_decoder_layer(ops: OpSet, dtype: mx.Dtype) -> None:
    layers = [random_decoder_layer(seed=seed, dtype=dtype, ops=ops) for seed in range(3)]
    for i in (0, 2):
        mixer = random_gated_delta_net(seed=i, dtype=dtype, ops=ops)
        layers[i] = replace(layers[i], mixer=mixer)
    x, stack = normal((2, 9, 64), dtype, seed=3), LayerStack(layers)
    y = stack(x, Batch.at(0, 2, 9), [RecurrentCache(), DenseCache(), RecurrentCache()])
    assert_close(y, oracle.decoder_layers(exact(x), layers))


def test_the_phase_of_the_batch_reaches_every_product(ops: OpSet) -> None:
    phases: list[str | None] = []

    def linear(*args: Any, phase: Any = None, **kwargs: Any) -> Any:
        phases.append(phase)
        return ops.linear(*args, phase=phase, **kwargs)

    layer = random_gated_delta_net(ops=replace(ops, linear=linear))
    for phase in ("prefill", "decode"):
        phases.clear()
        layer(mx.zeros((1, 1, 64)), Batch.at(0, 1, 1, phase), RecurrentCache())
        assert phases == [phase] * 5


@pytest.mark.parametrize("name", ["causal_conv", "gated_delta", "gated_rms_norm"])
def test_a_replaced_op_runs(ops: OpSet, name: str) -> None:
    calls: list[str] = []

    def mine(*args: Any) -> Any:
        calls.append(name)
        return getattr(ops, name)(*args)

    changed: dict[str, Any] = {name: mine}
    layer = random_gated_delta_net(ops=replace(ops, **changed))
    layer(mx.zeros((1, 2, 64)))
    assert calls == [name]


def test_no_tokens_give_an_empty_result(ops: OpSet, dtype: mx.Dtype) -> None:
    layer, cache = random_gated_delta_net(24, dtype=dtype, ops=ops), RecurrentCache()
    y = layer(mx.zeros((2, 0, 24), dtype), cache=cache)
    assert (y.shape, y.dtype, cache.offset) == ((2, 0, 24), dtype, 0)


class Rank(Communicator):
    """A communicator for one of two ranks. `all_reduce` adds 100, so that tests see each call."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce(self, part: mx.array) -> mx.array:
        return part + 100


def part_of(whole: GatedDeltaNet, rank: int) -> GatedDeltaNet:
    """Return the part of a process with one of two key heads, and the value heads of that head."""
    q = np.arange(whole.key_dim) + whole.key_dim * rank
    heads = np.arange(2) + 2 * rank
    v = np.arange(2 * whole.value_dim) + 2 * whole.value_dim * rank
    keys = 2 * whole.key_dim
    channels = mx.array(np.concatenate([q, keys + q, 2 * keys + v]))
    rows, value_heads = mx.array(v), mx.array(heads)
    return replace(
        whole,
        num_key_heads=1,
        num_value_heads=2,
        wqkv=whole.wqkv[channels],
        conv=whole.conv[channels],
        wz=whole.wz[rows],
        wa=whole.wa[value_heads],
        wb=whole.wb[value_heads],
        a_log=whole.a_log[value_heads],
        dt_bias=whole.dt_bias[value_heads],
        wo=whole.wo[:, rows],
        communicator=Rank(rank),
    )


def test_the_heads_of_two_processes_sum_up(ops: OpSet) -> None:
    whole = random_gated_delta_net(24, ops=ops)
    x, residual = (normal((2, 5, 24), seed=seed) for seed in (30, 31))
    total = sum(exact(part_of(whole, rank)(x, residual=residual)) - 100 for rank in range(2))
    expected = oracle.gated_delta_net(exact(x), whole) + exact(residual)
    # `Rank.all_reduce` adds 100, so the parts are rounded to the steps of numbers around 100.
    assert_close(mx.array(total + 100).astype(mx.float32), expected + 100)


def test_refuses_a_cache_of_keys_and_values(ops: OpSet) -> None:
    with pytest.raises(ValueError, match=r"cache: expected states .* got DenseCache: make one"):
        random_gated_delta_net(ops=ops)(mx.zeros((1, 2, 64)), cache=DenseCache())


def test_refuses_value_heads_that_do_not_share_evenly() -> None:
    with pytest.raises(ValueError, match=r"num_value_heads: expected a multiple of 2 .* got 3"):
        random_gated_delta_net(24, 2, 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wqkv", "(96, 64)"),
        ("wz", "(32, 64)"),
        ("wb", "(4, 64)"),
        ("wa", "(4, 64)"),
        ("conv", "(96, 5)"),
        ("a_log", "(4,)"),
        ("dt_bias", "(4,)"),
        ("norm", "(8,)"),
        ("wo", "(64, 32)"),
    ],
)
def test_refuses_a_weight_of_another_shape(unchecked: None, name: str, expected: str) -> None:
    layer = random_gated_delta_net()
    changed: dict[str, Any] = {name: mx.zeros((7, 5))}
    with pytest.raises(ValueError, match="expected shape") as caught:
        replace(layer, **changed)
    assert str(caught.value) == f"{name}: expected shape {expected}, got (7, 5)"


def test_refuses_a_decay_rate_that_is_not_float32(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"a_log: expected dtype .*float32, got .*bfloat16"):
        replace(random_gated_delta_net(), a_log=mx.zeros(4, mx.bfloat16))
