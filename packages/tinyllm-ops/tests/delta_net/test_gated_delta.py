from collections.abc import Sequence
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import NO_STATE, OpSet, StateTable
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle

HK, HV, DK, DV = 2, 4, 16, 8
Tokens = dict[str, mx.array]


def chunk(length: int, *, first: bool) -> StateTable:
    """Return the table of one chunk of a text; its first chunk loads no state."""
    return StateTable.of([(NO_STATE if first else 0, length, {length: 0})], num_slots=1)


def tokens(
    count: int,
    dtype: mx.Dtype = mx.float32,
    heads: tuple[int, int] = (HK, HV),
    dims: tuple[int, int] = (DK, DV),
) -> Tokens:
    """Draw the arguments that have a row for each token."""
    (hk, hv), (dk, dv) = heads, dims
    shapes = {"q": (hk, dk), "k": (hk, dk), "v": (hv, dv), "a": (hv,), "b": (hv,)}
    return {
        name: normal((count, *shape), dtype, seed=seed, magnitude=2.0)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def heads_of(count: int, dtype: mx.Dtype = mx.float32) -> Tokens:
    """Draw the weights of the heads. Decay rates reach from 0.1 to 10, as in trained layers."""
    return {
        "a_log": mx.linspace(-2.3, 2.3, count),
        "dt_bias": normal((count,), dtype, seed=11),
    }


def rows(text: Tokens, first: int, stop: int) -> Tokens:
    return {name: x[first:stop] for name, x in text.items()}


def joined(parts: Sequence[Tokens]) -> Tokens:
    return {name: mx.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (2, 4), (1, 6)], ids=str)
@pytest.mark.parametrize("dims", [(16, 8), (8, 32)], ids=str)
@pytest.mark.parametrize("load", [NO_STATE, 1])
def test_is_the_recurrence_of_the_paper(
    ops: OpSet, dtype: mx.Dtype, load: int, dims: tuple[int, int], heads: tuple[int, int]
) -> None:
    text, weights = tokens(30, dtype, heads, dims), heads_of(heads[1], dtype)
    state = normal((3, heads[1], dims[1], dims[0]), seed=20)
    states = StateTable.of([(load, 30, {30: 2, 11: 0})], num_slots=3)
    o, after = ops.gated_delta(**text, **weights, slots=state, state_table=states)
    before = np.zeros(state.shape[1:]) if load == NO_STATE else exact(state[load])
    numbers = {name: exact(x) for name, x in (text | weights).items()}
    expected, matrices = oracle.gated_delta(**numbers, before=before)
    assert (o.dtype, after.dtype) == (dtype, mx.float32)
    assert_close(o, expected)
    assert_close(after, np.stack([matrices[11], exact(state[1]), matrices[30]]))


def test_returns_a_value_for_its_key_and_overwrites_it(ops: OpSet) -> None:
    # No decay (a = -100), full steps (b = 100). The keys 1 and 2 are orthogonal.
    one, two = mx.eye(4)[0], mx.eye(4)[1]
    keys = mx.stack([one, two, one, two])[:, None]
    queries = mx.stack([one, one, one, two])[:, None]
    values = mx.array([[3.0], [5.0], [7.0], [5.0]])[:, None]
    flat = mx.full((4, 1), 100.0)
    states = chunk(4, first=True)
    o, _ = ops.gated_delta(
        queries, keys, values, -flat, flat, mx.zeros(1), mx.zeros(1), mx.zeros((1, 1, 1, 4)), states
    )
    # o is scaled by 1/sqrt(4). The third token replaces 3 by 7 and leaves 5.
    assert (o.flatten() * 2).tolist() == pytest.approx([3, 3, 7, 5], rel=1e-5)


def test_equals_the_update_of_mlx(ops: OpSet) -> None:
    text, weights = tokens(20), heads_of(HV)
    state = normal((1, HV, DV, DK), seed=20)
    o, after = ops.gated_delta(**text, **weights, slots=state, state_table=StateTable.rows(1, 20))

    def unit(x: mx.array) -> mx.array:
        return x * mx.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    step = mx.logaddexp(text["a"] + weights["dt_bias"], mx.array(0.0))
    expected, matrices = mx.fast.gated_delta_update(
        unit(text["q"])[None] * DK**-0.5,
        unit(text["k"])[None],
        text["v"][None],
        mx.exp(-mx.exp(weights["a_log"]) * step)[None],
        mx.sigmoid(text["b"])[None],
        state,
    )
    assert_close(o, exact(expected[0]))
    assert_close(after, exact(matrices))


@given(
    cuts=st.lists(st.integers(1, 23), max_size=6),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=30)
def test_any_chunks_give_the_bits_of_the_whole_text(
    cuts: list[int], opset: OpSet, dtype: mx.Dtype
) -> None:
    text, weights = tokens(24, dtype), heads_of(HV, dtype)
    empty = mx.zeros((1, HV, DV, DK))
    start = chunk(24, first=True)
    whole, end = opset.gated_delta(**text, **weights, slots=empty, state_table=start)
    outs, state = [], empty
    for a, b in pairwise(sorted({0, 24, *cuts})):
        states = chunk(b - a, first=a == 0)
        o, state = opset.gated_delta(**rows(text, a, b), **weights, slots=state, state_table=states)
        outs.append(o)
    assert mx.array_equal(mx.concatenate(outs), whole)
    assert mx.array_equal(state, end)


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    order=st.permutations(range(12)),
    opset=st.sampled_from(OPSETS),
)
@settings(max_examples=30)
def test_neighbors_and_slots_change_no_bit(
    lengths: list[int], order: list[int], opset: OpSet
) -> None:
    weights = heads_of(HV)
    texts = [rows(tokens(6 + i), i, i + length) for i, length in enumerate(lengths)]
    state = normal((12, HV, DV, DK), seed=20)
    chunks = [
        (order[i] if i % 2 else NO_STATE, length, {length: order[i]} if length else {})
        for i, length in enumerate(lengths)
    ]
    states = StateTable.of(chunks, num_slots=12)
    o, after = opset.gated_delta(**joined(texts), **weights, slots=state, state_table=states)
    for i, (text, (load, length, saves)) in enumerate(zip(texts, chunks, strict=True)):
        alone = StateTable.of([(NO_STATE if load == NO_STATE else 0, length, {})], num_slots=1)
        if saves:
            alone = chunk(length, first=load == NO_STATE)
        own, end = opset.gated_delta(
            **text, **weights, slots=state[order[i] : order[i] + 1], state_table=alone
        )
        assert mx.array_equal(o[states.cu_seqlens[i] : states.cu_seqlens[i + 1]], own)
        assert mx.array_equal(after[order[i]], end[0])
    untouched = mx.array(order[len(lengths) :])
    assert mx.array_equal(after[untouched], state[untouched])


def test_a_snapshot_and_a_fork_go_on_with_the_bits_of_the_text(ops: OpSet) -> None:
    text, weights = tokens(12), heads_of(HV)
    state = mx.zeros((4, HV, DV, DK))
    first = StateTable.of([(NO_STATE, 12, {5: 3, 12: 0})], num_slots=4)
    whole, state = ops.gated_delta(**text, **weights, slots=state, state_table=first)
    # Two forks of the snapshot after 5 tokens; one saves after each token, as drafts do.
    forks = StateTable.of([(3, 2, {1: 1, 2: 2}), (3, 7, {7: 3})][:1], num_slots=4)
    o, state = ops.gated_delta(**rows(text, 5, 7), **weights, slots=state, state_table=forks)
    assert mx.array_equal(o, whole[5:7])
    both = StateTable.of([(1, 6, {}), (2, 5, {5: 2})], num_slots=4)
    parts = joined([rows(text, 6, 12), rows(text, 7, 12)])
    o, state = ops.gated_delta(**parts, **weights, slots=state, state_table=both)
    assert mx.array_equal(o, mx.concatenate([whole[6:], whole[7:]]))
    assert mx.array_equal(state[2], state[0])


def test_the_argument_with_the_slots_is_not_changed(ops: OpSet) -> None:
    text, weights = tokens(3), heads_of(HV)
    state = normal((2, HV, DV, DK), seed=20)
    before = np.array(state)
    o, after = ops.gated_delta(
        **text, **weights, slots=state, state_table=StateTable.of([(0, 3, {3: 1})], num_slots=2)
    )
    mx.eval(o, after)
    assert np.array_equal(np.array(state), before)
    assert not mx.array_equal(after, state)


@pytest.mark.parametrize("magnitude", [1e-4, 1e3, 1e4])
def test_sizes_of_queries_and_keys_do_not_matter(
    ops: OpSet, dtype: mx.Dtype, magnitude: float
) -> None:
    text, weights = tokens(9, dtype), heads_of(HV, dtype)
    text |= {name: normal((9, HK, DK), dtype, seed=5, magnitude=magnitude) for name in ("q", "k")}
    state = mx.zeros((1, HV, DV, DK))
    o, after = ops.gated_delta(**text, **weights, slots=state, state_table=chunk(9, first=True))
    numbers = {name: exact(x) for name, x in (text | weights).items()}
    expected, matrices = oracle.gated_delta(**numbers, before=np.zeros((HV, DV, DK)))
    assert_close(o, expected)
    assert_close(after[0], matrices[-1])


@pytest.mark.parametrize("extreme", [-3e4, 3e4])
def test_extreme_gates_do_not_overflow(ops: OpSet, dtype: mx.Dtype, extreme: float) -> None:
    text, weights = tokens(4, dtype), heads_of(HV, dtype)
    text |= {name: mx.full((4, HV), extreme, dtype) for name in ("a", "b")}
    o, after = ops.gated_delta(
        **text, **weights, slots=mx.ones((1, HV, DV, DK)), state_table=StateTable.rows(1, 4)
    )
    numbers = {name: exact(x) for name, x in (text | weights).items()}
    expected, matrices = oracle.gated_delta(**numbers, before=np.ones((HV, DV, DK)))
    assert_close(o, expected)
    assert_close(after[0], matrices[-1])


def test_the_softplus_of_a_is_float32_in_every_dtype(ops: OpSet) -> None:
    # log(1 + exp(-12)) = 6.1e-6. In bfloat16, 1 + exp(-12) is 1, and the decay would be lost.
    text, weights = (
        tokens(40, mx.bfloat16, (1, 1), (4, 4)),
        {
            "a_log": mx.full((1,), 8.0),
            "dt_bias": mx.zeros(1, mx.bfloat16),
        },
    )
    text |= {"a": mx.full((40, 1), -12.0, mx.bfloat16), "b": mx.full((40, 1), -50, mx.bfloat16)}
    states = StateTable.rows(1, 40)
    _, after = ops.gated_delta(**text, **weights, slots=mx.ones((1, 1, 4, 4)), state_table=states)
    assert after.max().item() == pytest.approx(
        np.exp(-40 * np.exp(8) * np.log1p(np.exp(-12))), 1e-3
    )


@pytest.mark.parametrize(("heads", "width"), [(0, 3), (2, 0)])
def test_values_without_numbers_give_none(ops: OpSet, heads: int, width: int) -> None:
    q, v, a = mx.zeros((2, 1, 4)), mx.zeros((2, heads, width)), mx.zeros((2, heads))
    slots, states = mx.zeros((1, heads, width, 4)), StateTable.of([(-1, 2, {2: 0})], num_slots=1)
    o, after = ops.gated_delta(q, q, v, a, a, mx.zeros(heads), mx.zeros(heads), slots, states)
    assert (o.shape, after.shape) == (v.shape, slots.shape)
    mx.eval(o, after)


def test_no_tokens_change_no_slot(ops: OpSet, dtype: mx.Dtype) -> None:
    state = normal((2, HV, DV, DK), seed=1)
    o, after = ops.gated_delta(
        **tokens(0, dtype), **heads_of(HV, dtype), slots=state, state_table=StateTable.rows(2, 0)
    )
    assert (o.shape, o.dtype) == ((0, HV, DV), dtype)
    assert mx.array_equal(after, state)


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        ("q", mx.zeros((3, 32)), "q: expected axes T Hk Dk, got shape"),
        ("q", mx.zeros((3, 2, 0)), "q: expected at least one feature per head, got"),
        ("k", mx.zeros((3, 2, 15)), r"k: expected shape \(3, 2, 16\), got \(3, 2, 15\)"),
        ("v", mx.zeros((3, 32)), "v: expected axes T Hv Dv, got shape"),
        ("v", mx.zeros((4, 4, 8)), r"v: expected shape \(3, 4, 8\), got \(4, 4, 8\)"),
        ("a", mx.zeros((3, 2)), r"a: expected shape \(3, 4\), got \(3, 2\)"),
        ("b", mx.zeros((3, 4), mx.float16), "b: expected dtype .*float32, got .*float16"),
        ("a_log", mx.zeros(3), r"a_log: expected shape \(4,\), got \(3,\)"),
        ("a_log", mx.zeros(4, mx.bfloat16), "a_log: expected dtype .*float32, got .*bfloat16"),
        ("dt_bias", mx.zeros(3), r"dt_bias: expected shape \(4,\), got \(3,\)"),
        ("dt_bias", mx.zeros(4, mx.int32), "dt_bias: expected float32, float16 or bfloat16, got"),
        ("slots", mx.zeros((2, 4, 16, 8)), r"slots: expected shape \(2, 4, 8, 16\), got"),
        ("slots", mx.zeros((3, 4, 8, 16)), r"slots: expected shape \(2, 4, 8, 16\), got \(3,"),
        ("slots", mx.zeros((2, 4, 8, 16), mx.float16), "slots: expected dtype .*32, got .*16"),
        ("state_table", StateTable.rows(2, 1), "q: expected 2 tokens, as the table has, got 3"),
    ],
)
def test_refuses_arguments_that_do_not_fit(
    ops: OpSet, unchecked: None, name: str, bad: mx.array | StateTable, words: str
) -> None:
    arguments = tokens(3) | heads_of(HV) | {"slots": mx.zeros((2, HV, DV, DK))}
    states = StateTable.of([(0, 3, {})], num_slots=2)
    with pytest.raises(ValueError, match=words):
        ops.gated_delta(**(arguments | {"state_table": states, name: bad}))  # type: ignore[arg-type]


def test_refuses_value_heads_that_do_not_share_evenly(ops: OpSet, unchecked: None) -> None:
    with pytest.raises(
        ValueError, match="v: expected a multiple of 2 key heads, got 3 value heads"
    ):
        ops.gated_delta(
            **tokens(3, heads=(2, 3)),
            **heads_of(3),
            slots=mx.zeros((1, 3, DV, DK)),
            state_table=StateTable.rows(1, 3),
        )
