"""Caches of states: the lengths that they keep, forks, failed calls, and their memory."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_layers import Batch, GatedDeltaNet, RecurrentCache, RecurrentPool, StateShape
from tinyllm_layers.testing import random_gated_delta_net
from tinyllm_ops import REFERENCE, OpSet, Phase, StateTable
from tinyllm_ops.testing import normal

SHAPE = StateShape(kernel=4, channels=96, num_heads=4, value_dim=8, key_dim=16, dtype=mx.float32)
TEXT = normal((2, 300, 64), seed=1)


def feed(
    layer: GatedDeltaNet, cache: RecurrentCache, length: int, phase: Phase | None = None
) -> mx.array:
    """Compute the next tokens of TEXT."""
    start = cache.offset
    batch = Batch.at(start, 2, length, phase)
    return layer(TEXT[:, start : start + length], batch, cache)


def contents(cache: RecurrentCache) -> list[object]:
    """Return everything that a cache holds."""
    lengths = [n for n in range(301) if cache.can_trim(n)]
    return [cache.offset, lengths, *(np.array(array).tolist() for array in cache.arrays)]


@pytest.fixture(scope="module")
def layer(exact_ops: OpSet) -> GatedDeltaNet:
    return random_gated_delta_net(ops=exact_ops)


@pytest.fixture(scope="module")
def whole(layer: GatedDeltaNet) -> mx.array:
    return layer(TEXT)


def kept(cache: RecurrentCache) -> list[int]:
    return [n for n in range(1, cache.offset + 1) if cache.can_trim(n)]


def test_keeps_the_end_of_a_prompt_and_a_border_before_it(layer: GatedDeltaNet) -> None:
    cache = RecurrentCache()
    feed(layer, cache, 150)
    assert kept(cache) == [128, 150]
    feed(layer, cache, 1)  # decode steps do not displace them
    feed(layer, cache, 1)
    feed(layer, cache, 1)
    assert kept(cache) == [128, 150, 152, 153]
    assert [cache.trimmable(n) for n in (400, 153, 151, 149, 127)] == [153, 153, 150, 128, 0]


def test_a_short_last_chunk_keeps_the_border_of_the_chunk_before(layer: GatedDeltaNet) -> None:
    cache = RecurrentCache()
    feed(layer, cache, 150)
    feed(layer, cache, 5)
    # The last 16 tokens open the answer, so that a length among them cannot replace 128.
    assert kept(cache) == [128, 150, 155]
    feed(layer, cache, 1)
    feed(layer, cache, 1)
    assert {128, 155, 156, 157} <= set(kept(cache))


def test_keeps_every_length_of_a_decode_pass_and_the_length_before(layer: GatedDeltaNet) -> None:
    cache = RecurrentCache()
    feed(layer, cache, 20)
    feed(layer, cache, 5, "decode")  # a token and four drafts
    assert kept(cache) == [20, 21, 22, 23, 24, 25]


@given(
    prompt=st.integers(1, 100),
    passes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=5),
)
@settings(max_examples=15)
def test_drafts_that_are_trimmed_have_no_effect(
    layer: GatedDeltaNet, whole: mx.array, prompt: int, passes: list[tuple[int, int]]
) -> None:
    cache = RecurrentCache()
    assert mx.array_equal(feed(layer, cache, prompt), whole[:, :prompt])
    for drafts, rejected in passes:
        start = cache.offset
        y = feed(layer, cache, drafts, "decode")
        assert mx.array_equal(y, whole[:, start : start + drafts])
        cache.trim(cache.offset - min(rejected, drafts))
    start = cache.offset
    assert mx.array_equal(feed(layer, cache, 3, "prefill"), whole[:, start : start + 3])


@pytest.mark.parametrize("length", [0, 128, 150, 152])
def test_goes_on_from_each_kept_length(layer: GatedDeltaNet, whole: mx.array, length: int) -> None:
    cache = RecurrentCache()
    for count in (150, 1, 1, 1):
        feed(layer, cache, count)
    cache.trim(length)
    assert cache.offset == length
    assert mx.array_equal(feed(layer, cache, 40), whole[:, length : length + 40])
    assert mx.array_equal(feed(layer, cache, 1), whole[:, length + 40 : length + 41])


@pytest.mark.parametrize("length", [-1, 100, 151, 154])
def test_refuses_a_length_whose_state_is_not_kept(layer: GatedDeltaNet, length: int) -> None:
    cache = RecurrentCache()
    for count in (150, 1, 1, 1):
        feed(layer, cache, count)
    before = contents(cache)
    with pytest.raises(ValueError, match=rf"length: .* \[128, 150, 152, 153\], .*, got {length}"):
        cache.trim(length)
    assert contents(cache) == before


def test_a_trim_forgets_the_lengths_behind_it(layer: GatedDeltaNet) -> None:
    cache = RecurrentCache()
    for count in (150, 1, 1):
        feed(layer, cache, count)
    cache.trim(150)
    assert [cache.can_trim(n) for n in (128, 150, 151, 152)] == [True, True, False, False]
    assert cache.trimmable(152) == 150


def test_an_empty_cache_can_be_trimmed_to_nothing_alone() -> None:
    cache = RecurrentCache()
    assert (cache.offset, cache.arrays, cache.nbytes) == (0, [], 0)
    assert (cache.can_trim(0), cache.can_trim(1), cache.trimmable(5)) == (True, False, 0)


@pytest.mark.parametrize("first", ["original", "fork"])
def test_a_fork_and_its_original_go_on_independently(
    layer: GatedDeltaNet, whole: mx.array, first: str
) -> None:
    original = RecurrentCache()
    feed(layer, original, 90)
    fork = original.fork()
    assert contents(fork) == contents(original)
    one, two = (original, fork) if first == "original" else (fork, original)
    untouched = contents(two)
    assert mx.array_equal(feed(layer, one, 7), whole[:, 90:97])
    one.trim(90)
    layer(-TEXT[:, :9], Batch.at(90, 2, 9), one)  # another text
    assert contents(two) == untouched
    assert mx.array_equal(feed(layer, two, 7), whole[:, 90:97])


@pytest.mark.parametrize("name", ["causal_conv", "gated_delta", "gated_rms_norm"])
def test_after_an_error_of_an_op_a_cache_is_as_before(layer: GatedDeltaNet, name: str) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("out of memory")

    changed: dict[str, Any] = {name: broken}
    cache = RecurrentCache()
    feed(layer, cache, 70)
    before = contents(cache)
    with pytest.raises(RuntimeError, match="out of memory"):
        feed(replace(layer, ops=replace(layer.ops, **changed)), cache, 3)
    assert contents(cache) == before


@pytest.mark.parametrize("line", range(1, 20))
def test_ctrl_c_while_states_are_replaced_leaves_right_states(
    layer: GatedDeltaNet, whole: mx.array, line: int
) -> None:
    cache = RecurrentCache()
    for length in (150, 1, 1):
        feed(layer, cache, length)
    lines = 0

    def interrupt(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code  # runtime type checks have functions of the same name
        if code.co_name != "commit" or not code.co_filename.endswith("recurrent.py"):
            return None
        nonlocal lines
        lines += event == "line"
        if lines == line:
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    with suppress(KeyboardInterrupt):
        feed(layer, cache, 1)
    sys.settrace(before)
    lengths = kept(cache)
    assert lengths[-1] >= 151
    for length in lengths:
        again = cache.fork()
        again.trim(length)
        assert mx.array_equal(feed(layer, again, 2), whole[:, length : length + 2])


def test_memory_does_not_grow_with_the_text(layer: GatedDeltaNet) -> None:
    cache = RecurrentCache()
    for count in (100, *[1] * 30, 100, *[1] * 30):
        feed(layer, cache, count)
    # Two states of each prompt and the newest, for two rows.
    assert cache.nbytes == 5 * 2 * SHAPE.nbytes
    feed(layer, cache, 9, "decode")
    # Two of the prompt, the one before the pass, and nine drafts.
    assert cache.nbytes == 12 * 2 * SHAPE.nbytes


def test_the_layers_of_a_model_share_one_table(layer: GatedDeltaNet) -> None:
    tables = []
    for _ in range(2):
        cache = RecurrentCache()
        feed(layer, cache, 70)
        tables.append(cache.slots_and_table(Batch.at(70, 2, 1), SHAPE)[2])
    assert tables[0] is tables[1]


@pytest.mark.parametrize(
    ("rows", "shape", "words"),
    [
        (3, SHAPE, "batch: expected 2 rows, got 3"),
        (2, replace(SHAPE, channels=95), r"conv: expected shape \(8, 3, 95\), got \(8, 3, 96\)"),
        (2, replace(SHAPE, key_dim=15), r"state: expected shape \(8, 4, 8, 15\), got"),
        (2, replace(SHAPE, dtype=mx.float16), "conv: expected dtype .*float16, got .*float32"),
    ],
)
def test_refuses_a_batch_or_a_layer_that_does_not_fit(
    layer: GatedDeltaNet, rows: int, shape: StateShape, words: str
) -> None:
    cache = RecurrentCache()
    feed(layer, cache, 5)
    with pytest.raises(ValueError, match=words):
        cache.slots_and_table(Batch.at(5, rows, 1), shape)


def test_a_shape_knows_its_bytes() -> None:
    conv, state = SHAPE.slots(3)
    assert conv.shape == (3, 3, 96)
    assert state.shape == (3, 4, 8, 16)
    assert conv.nbytes + state.nbytes == 3 * SHAPE.nbytes


def test_a_pool_needs_a_state_table(ops: OpSet) -> None:
    layer = random_gated_delta_net(ops=ops)
    pool = RecurrentPool.empty(3, layer.state_shape)
    assert (pool.num_slots, pool.nbytes) == (3, 3 * SHAPE.nbytes)
    with pytest.raises(ValueError, match="batch: expected a state table for a pool of states, got"):
        layer(mx.zeros((1, 2, 64)), Batch.at(0, 1, 2), pool)
    states = StateTable.rows(2, 1)
    with pytest.raises(ValueError, match=r"slots: expected shape \(2, 3, 96\), got \(3, 3, 96\)"):
        layer(mx.zeros((2, 1, 64)), replace(Batch.at(0, 2, 1), state_table=states), pool)


def test_a_pool_is_as_before_after_an_error(layer: GatedDeltaNet) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("out of memory")

    pool = RecurrentPool(*(normal(x.shape, seed=3) for x in SHAPE.slots(2)))
    before = [np.array(array) for array in pool.arrays]
    changed: dict[str, Any] = {"gated_rms_norm": broken}
    failing = replace(layer, ops=replace(REFERENCE, **changed))
    batch = replace(Batch.at(0, 2, 1), state_table=StateTable.rows(2, 1))
    with pytest.raises(RuntimeError, match="out of memory"):
        failing(TEXT[:, :1], batch, pool)
    assert all(np.array_equal(np.array(a), b) for a, b in zip(pool.arrays, before, strict=True))
