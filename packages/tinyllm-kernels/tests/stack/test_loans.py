"""A stack keeps the arrays of caches between passes, and every reader gets them back in time."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels import opset
from tinyllm_kernels.testing import (
    NUM_PAGES,
    PAGE_SIZE,
    LayerShape,
    make_caches,
    make_input,
    make_layers,
    make_table,
    same_bits,
    stored,
)
from tinyllm_layers import (
    Backend,
    Batch,
    DenseCache,
    LayerCache,
    LayerStack,
    QuantizedCache,
    SequenceCache,
    Stack,
    make_stack,
)
from tinyllm_layers.cache.dense import CAPACITY_STEP, GrowingCache
from tinyllm_ops import PageTable

if TYPE_CHECKING:
    from _typeshed import TraceFunction

SHAPE = LayerShape()
LAYERS = 3
SEQUENCE_KINDS = ["dense", "quantized-4"]
KINDS = [*SEQUENCE_KINDS, "paged", "paged-8"]


def step(kind: str, at: int) -> Batch:
    """Return the batch of a decode step in which two sequences have `at` tokens."""
    if kind in SEQUENCE_KINDS:
        return Batch.at(at, 2, 1)
    return Batch.paged(make_table(((7, 2, 9), at, at + 1), ((4, 0, 11), at, at + 1)), "decode")


def decode(
    stack: Stack, kind: str, caches: Sequence[LayerCache], steps: range, dtype: mx.Dtype
) -> list[mx.array]:
    """Build the passes of some steps, and evaluate none of them."""
    batches = [step(kind, at) for at in steps]
    inputs = [make_input(batch, SHAPE.width, dtype, seed=at) for at, batch in enumerate(batches)]
    return [stack(x, batch, caches) for x, batch in zip(inputs, batches, strict=True)]


def token_bytes(caches: Sequence[LayerCache], index: int) -> list[bytes]:
    """Return what all arrays hold for the token `index` of each row."""
    arrays = [array[..., index, :] for cache in caches for array in cache.arrays]
    return [np.array(array.view(mx.uint8)).tobytes() for array in arrays]


def are_lent(caches: Sequence[LayerCache]) -> bool:
    return all(cache.lent is not None for cache in caches)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(params=SEQUENCE_KINDS)
def sequence_kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def stacks(ops: Backend) -> tuple[Stack, Stack]:
    layers = make_layers(SHAPE, LAYERS, mx.bfloat16, ops)
    return make_stack(layers, ops), LayerStack(layers)


def test_passes_build_on_each_other_before_any_is_evaluated(
    stacks: tuple[Stack, Stack], kind: str
) -> None:
    caches = [make_caches(kind, LAYERS, SHAPE, mx.bfloat16) for _ in stacks]
    made, expected = (
        decode(stack, kind, own, range(6), mx.bfloat16)
        for stack, own in zip(stacks, caches, strict=True)
    )
    assert are_lent(caches[0])
    pairs = list(zip(made, expected, strict=True))
    assert all(same_bits(a, b) for a, b in reversed(pairs))
    for own, other in zip(*caches, strict=True):
        pairs = list(zip(stored(own), stored(other), strict=True))
        assert all(mx.array_equal(a, b) for a, b in pairs)


def test_passes_outlive_their_caches(stacks: tuple[Stack, Stack], kind: str) -> None:
    """The memory of the caches lives until the last pass is computed, even without the caches."""
    made, expected = (
        decode(stack, kind, make_caches(kind, LAYERS, SHAPE, mx.bfloat16), range(6), mx.bfloat16)
        for stack in stacks
    )
    gc.collect()
    noise = [mx.random.normal((64, 64)) for _ in range(50)]
    mx.eval(made[-1], noise)
    assert all(same_bits(a, b) for a, b in zip(made, expected, strict=True))


READERS: dict[str, Callable[[LayerCache], object]] = {
    "arrays": lambda cache: cache.arrays,
    "nbytes": lambda cache: cache.nbytes,
    "fork": lambda cache: cache.fork(),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("index", range(LAYERS))
def test_a_reader_between_passes_changes_nothing(
    stacks: tuple[Stack, Stack], kind: str, reader: str, index: int
) -> None:
    made, caches = [], [make_caches(kind, LAYERS, SHAPE, mx.bfloat16) for _ in stacks]
    for stack, own in zip(stacks, caches, strict=True):
        first = decode(stack, kind, own, range(3), mx.bfloat16)
        READERS[reader](own[index])
        assert own[index].lent is None
        made.append(first + decode(stack, kind, own, range(3, 6), mx.bfloat16))
    assert are_lent(caches[0])
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))


def test_a_trim_ends_the_loan(stacks: tuple[Stack, Stack], sequence_kind: str) -> None:
    made, caches = [], [make_caches(sequence_kind, LAYERS, SHAPE, mx.bfloat16) for _ in stacks]
    for stack, own in zip(stacks, caches, strict=True):
        first = decode(stack, sequence_kind, own, range(5), mx.bfloat16)
        for cache in own:
            assert isinstance(cache, GrowingCache)
            assert (cache.offset, cache.can_trim(5), cache.can_trim(6)) == (5, True, False)
            with pytest.raises(ValueError, match="expected 0 to 5, got 6"):
                cache.trim(6)
        trim(own, 2)
        assert [cache.offset for cache in own] == [2] * LAYERS  # type: ignore[attr-defined]
        made.append(first + decode(stack, sequence_kind, own, range(2, 4), mx.bfloat16))
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))


def test_one_trimmed_cache_is_noticed(stacks: tuple[Stack, Stack], sequence_kind: str) -> None:
    offsets = []
    for stack in stacks:
        caches = make_caches(sequence_kind, LAYERS, SHAPE, mx.bfloat16)
        decode(stack, sequence_kind, caches, range(4), mx.bfloat16)
        trim(caches[1:2], 2)
        with pytest.raises(ValueError, match=r"from position 2 on.* got .* 4 on"):
            decode(stack, sequence_kind, caches, range(4, 5), mx.bfloat16)
        offsets.append([cache.offset for cache in caches if isinstance(cache, SequenceCache)])
    assert offsets[0] == offsets[1]


@pytest.mark.parametrize("evaluated", [0, 2])
def test_a_pass_that_is_trimmed_away_is_not_computed(
    ops: Backend, sequence_kind: str, evaluated: int
) -> None:
    stack = make_stack(make_layers(SHAPE, LAYERS, mx.bfloat16, ops), ops)
    caches = make_caches(sequence_kind, LAYERS, SHAPE, mx.bfloat16)
    zeros = mx.zeros((2, SHAPE.kv_heads, evaluated + 1, SHAPE.head_dim), mx.bfloat16)
    for cache in caches:
        assert isinstance(cache, DenseCache | QuantizedCache)
        cache.update(zeros, zeros)
    before = token_bytes(caches, evaluated)
    trim(caches, 0)
    mx.eval(decode(stack, sequence_kind, caches, range(evaluated), mx.bfloat16))
    decode(stack, sequence_kind, caches, range(evaluated, evaluated + 1), mx.bfloat16)
    trim(caches, evaluated)
    assert token_bytes(caches, evaluated) == before


@pytest.mark.parametrize("evaluated", [0, 2])
def test_the_holder_of_a_pass_that_is_trimmed_away_can_compute_it(
    stacks: tuple[Stack, Stack], sequence_kind: str, evaluated: int
) -> None:
    made = []
    for stack in stacks:
        caches = make_caches(sequence_kind, LAYERS, SHAPE, mx.bfloat16)
        mx.eval(decode(stack, sequence_kind, caches, range(evaluated), mx.bfloat16))
        held = decode(stack, sequence_kind, caches, range(evaluated, evaluated + 1), mx.bfloat16)
        trim(caches, evaluated)
        x = make_input(step(sequence_kind, 0), SHAPE.width, mx.bfloat16, seed=77)
        others = [
            stack(x, step(sequence_kind, at), caches) for at in range(evaluated, evaluated + 3)
        ]
        mx.eval(others)
        made.append(held + others)
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))


def trim(caches: Sequence[LayerCache], length: int) -> None:
    for cache in caches:
        assert isinstance(cache, GrowingCache)
        cache.trim(length)


def test_a_cache_grows_during_a_loan(stacks: tuple[Stack, Stack], sequence_kind: str) -> None:
    last = []
    for stack in stacks:
        caches = make_caches(sequence_kind, LAYERS, SHAPE, mx.bfloat16)
        prompt = Batch.at(0, 2, CAPACITY_STEP - 2)
        mx.eval(stack(make_input(prompt, SHAPE.width, mx.bfloat16, seed=9), prompt, caches))
        steps = range(CAPACITY_STEP - 2, CAPACITY_STEP + 3)
        last.append(decode(stack, sequence_kind, caches, steps, mx.bfloat16))
        assert [cache.arrays[0].shape[-2] for cache in caches] == [2 * CAPACITY_STEP] * LAYERS
    assert all(same_bits(a, b) for a, b in zip(*last, strict=True))


def test_a_prompt_and_other_positions_continue_a_loan(
    stacks: tuple[Stack, Stack], sequence_kind: str
) -> None:
    batches = [Batch.at(0, 2, 1), Batch.at(1, 2, 4), Batch.at(5, 2, 1)]
    batches.append(Batch("decode", 2, 1, mx.array([[6], [3]])))
    made = []
    for stack in stacks:
        caches = make_caches(sequence_kind, LAYERS, SHAPE, mx.bfloat16)
        inputs = [make_input(batch, SHAPE.width, mx.bfloat16, seed=3) for batch in batches]
        made.append([stack(x, batch, caches) for x, batch in zip(inputs, batches, strict=True)])
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))


def test_other_weights_and_another_order_of_caches_are_noticed(ops: Backend, kind: str) -> None:
    layers = make_layers(SHAPE, LAYERS, mx.bfloat16, ops)
    made = []
    for make in (lambda own: make_stack(own, ops), LayerStack):
        first, second = make(layers), make(layers[::-1])
        caches = make_caches(kind, LAYERS, SHAPE, mx.bfloat16)
        rows = decode(first, kind, caches, range(2), mx.bfloat16)
        rows += decode(second, kind, caches, range(2, 4), mx.bfloat16)
        rows += decode(second, kind, caches[::-1], range(4, 6), mx.bfloat16)
        made.append(rows)
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))


def misfit(kind: str) -> Batch:
    """Return a batch of other rows, or of other pages, than the caches have."""
    if kind in SEQUENCE_KINDS:
        return Batch.at(2, 3, 1)
    table = PageTable.of([((0, 1), 2, 3)], num_pages=NUM_PAGES + 1, page_size=PAGE_SIZE)
    return Batch.paged(table, "decode")


def test_a_refused_pass_changes_no_cache(stacks: tuple[Stack, Stack], kind: str) -> None:
    made = []
    for stack, is_native in zip(stacks, (True, False), strict=True):
        caches = make_caches(kind, LAYERS, SHAPE, mx.bfloat16)
        rows = decode(stack, kind, caches, range(2), mx.bfloat16)
        batch = misfit(kind)
        if is_native:
            with pytest.raises(ValueError, match="expected"):
                stack(make_input(batch, SHAPE.width, mx.bfloat16, seed=8), batch, caches)
        made.append(rows + decode(stack, kind, caches, range(2, 4), mx.bfloat16))
    assert all(same_bits(a, b) for a, b in zip(*made, strict=True))


@contextmanager
def interrupt_at(instruction: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at an instruction of Python that lends arrays or takes them back.

    Yields a list with the number of instructions so far.
    """
    passed = [0]

    def trace(frame: FrameType, event: str, _: object) -> "TraceFunction | None":
        if not frame.f_code.co_filename.endswith(("/loans.py", "/dense.py", "/paged.py")):
            return None
        frame.f_trace_opcodes = True
        passed[0] += event == "opcode"
        if event == "opcode" and passed[0] == instruction:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("moment", ["lend", "read", "trim"])
@pytest.mark.usefixtures("native")
def test_ctrl_c_at_any_instruction_loses_no_token(kind: str, moment: str) -> None:
    """A cache has its earlier tokens, whatever Ctrl-C interrupted."""
    if moment == "trim" and kind not in SEQUENCE_KINDS:
        pytest.skip("pages are not trimmed")
    ops = opset("cpu")
    stack = make_stack(make_layers(SHAPE, LAYERS, mx.bfloat16, ops), ops)
    wanted, instruction, ends = None, 1, False
    while not ends:
        caches = make_caches(kind, LAYERS, SHAPE, mx.bfloat16)
        steps = range(2) if moment == "lend" else range(4)
        mx.eval(decode(stack, kind, caches, steps, mx.bfloat16))
        if moment == "lend":
            for cache in caches:
                assert cache.arrays  # ends the loan
        with interrupt_at(instruction) as passed:
            if moment == "lend":
                decode(stack, kind, caches, range(2, 3), mx.bfloat16)
            for cache in caches:
                if moment == "read":
                    assert cache.arrays
                elif moment == "trim":
                    assert isinstance(cache, GrowingCache)
                    cache.trim(2)
                    assert cache.arrays
        ends = passed[0] < instruction
        kept = [token_bytes([cache], 1) for cache in caches]
        wanted = kept if wanted is None else wanted
        assert kept == wanted, instruction
        if moment != "lend" and kind in SEQUENCE_KINDS:
            assert all(each.offset in (2, 4) for each in caches if isinstance(each, GrowingCache))
        instruction += 1 if instruction < 80 else 13  # the first cache ends the loan


def test_a_held_array_is_copied_when_it_is_lent(native: ModuleType, kind: str) -> None:
    ops = opset("cpu")
    stack = make_stack(make_layers(SHAPE, LAYERS, mx.bfloat16, ops), ops)
    caches = make_caches(kind, LAYERS, SHAPE, mx.bfloat16)
    mx.eval(decode(stack, kind, caches, range(2), mx.bfloat16))
    held = caches[1].arrays
    before = [np.array(array.view(mx.uint8)) for array in held]
    copied = native.copied_bytes()
    mx.eval(decode(stack, kind, caches, range(2, 5), mx.bfloat16))
    assert native.copied_bytes() - copied == sum(array.nbytes for array in held)
    now = [np.array(array.view(mx.uint8)) for array in held]
    assert all(np.array_equal(a, b) for a, b in zip(now, before, strict=True))


def test_lent_caches_keep_no_weights_and_no_memory(ops: Backend, kind: str) -> None:
    layers = make_layers(SHAPE, LAYERS, mx.bfloat16, ops)
    stack = make_stack(layers, ops)
    caches = make_caches(kind, LAYERS, SHAPE, mx.bfloat16)
    mx.eval(decode(stack, kind, caches, range(3), mx.bfloat16))
    weights = weakref.ref(layers[0])
    gc.collect()
    gc.disable()  # reference counts alone free them
    try:
        del stack, layers
        assert weights() is None
        active = mx.get_active_memory()
        size = sum(
            array.nbytes for array in make_caches(kind, LAYERS, SHAPE, mx.bfloat16)[0].arrays
        )
        assert are_lent(caches)
        caches.clear()
        assert active - mx.get_active_memory() >= LAYERS * size
    finally:
        gc.enable()
