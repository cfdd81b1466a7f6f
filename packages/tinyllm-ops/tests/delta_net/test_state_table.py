import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_ops import NO_STATE, StateTable

# Three tokens that go on from slot 2, with snapshots in slots 4 and 2, and a new text in slot 0.
CHUNKS = [(2, 3, {1: 4, 3: 2}), (NO_STATE, 2, {2: 0})]


def table(**changes: object) -> StateTable:
    numbers: dict[str, object] = {
        "cu_seqlens": [0, 3, 5],
        "load_slots": [2, NO_STATE],
        "save_slots": [4, NO_STATE, 2, NO_STATE, 0],
        "num_slots": 5,
    }
    return StateTable(**numbers | changes)  # type: ignore[arg-type] # the keys are the fields


def test_of_lays_out_chunks_of_sequences() -> None:
    states = StateTable.of(CHUNKS, num_slots=5)
    assert states.cu_seqlens == (0, 3, 5)
    assert states.load_slots == (2, NO_STATE)
    assert states.save_slots == (4, NO_STATE, 2, NO_STATE, 0)
    assert (states.count, states.num_slots) == (5, 5)
    assert states.sequences == ((2, 0, 3), (NO_STATE, 3, 5))
    assert states.save_pairs == ((0, 4), (2, 2), (4, 0))


@given(rows=st.integers(0, 4), length=st.integers(0, 5))
def test_rows_load_and_save_their_own_slot(rows: int, length: int) -> None:
    states = StateTable.rows(rows, length)
    assert states.cu_seqlens == tuple(length * row for row in range(rows + 1))
    assert states.load_slots == tuple(range(rows))
    ends = [(length * (row + 1) - 1, row) for row in range(rows)] if length else []
    assert states.save_pairs == tuple(ends)
    assert states.num_slots == rows


def test_arrays_hold_the_same_numbers_as_int32_and_are_made_once() -> None:
    states = table()
    arrays = states.arrays
    assert states.arrays is arrays
    assert arrays.cu_seqlens.tolist() == [0, 3, 5]
    assert arrays.load_slots.tolist() == [2, -1]
    assert arrays.save_slots.tolist() == [4, -1, 2, -1, 0]
    assert {part.dtype for part in vars(arrays).values()} == {mx.int32}


@pytest.mark.parametrize("chunks", [[], [(NO_STATE, 0, {})], [(2, 0, {})]], ids=str)
def test_a_pass_may_have_no_tokens(chunks: list[tuple[int, int, dict[int, int]]]) -> None:
    states = StateTable.of(chunks, num_slots=3)
    assert (states.count, states.save_pairs) == (0, ())
    assert states.arrays.save_slots.shape == (0,)


def test_forks_may_load_one_slot_and_a_sequence_may_save_the_slot_it_loads() -> None:
    states = StateTable.of([(1, 1, {1: 0}), (1, 1, {1: 2})], num_slots=3)
    assert states.load_slots == (1, 1)
    assert StateTable.of([(1, 2, {1: 0, 2: 1})], num_slots=3).save_slots == (0, 1)


def test_later_changes_of_the_callers_lists_do_not_reach_the_table() -> None:
    starts, loads, saves = [0, 1], [0], [1]
    states = StateTable(starts, loads, saves, num_slots=2)
    starts[0], loads[0], saves[0] = 9, 9, 9
    assert (states.cu_seqlens, states.load_slots, states.save_slots) == ((0, 1), (0,), (1,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"load_slots": [2]}, "cu_seqlens: expected 2 numbers for 1 load_slots, got 3"),
        ({"cu_seqlens": [0, 5]}, "cu_seqlens: expected 3 numbers for 2 load_slots, got 2"),
        ({"cu_seqlens": [1, 3, 5]}, r"ascending numbers from 0 to 5, .*, got \[1, 3, 5\]"),
        ({"cu_seqlens": [0, 3, 4]}, r"ascending numbers from 0 to 5, .*, got \[0, 3, 4\]"),
        ({"cu_seqlens": [0, 6, 5]}, r"ascending numbers from 0 to 5, .*, got \[0, 6, 5\]"),
        ({"load_slots": [5, -1]}, "load_slots: expected slots from 0 to 4 or -1, got 5"),
        ({"load_slots": [2, -2]}, "load_slots: expected slots from 0 to 4 or -1, got -2"),
        ({"save_slots": [5, -1, 2, -1, 0]}, "save_slots: expected slots from 0 to 4 or -1, got 5"),
        ({"save_slots": [4, -3, 2, -1, 0]}, "save_slots: expected slots from 0 to 4 or -1, got -3"),
        ({"save_slots": [4, -1, 2, -1, 4]}, "save_slots: expected each slot once, got 4 twice"),
        ({"save_slots": [2, -1, 2, -1, 0]}, "save_slots: expected each slot once, got 2 twice"),
        (
            {"load_slots": [2, 4]},
            "load_slots: expected a slot that no other .* got 4 for sequence 1, which",
        ),
        ({"num_slots": 4}, "save_slots: expected slots from 0 to 3 or -1, got 4"),
    ],
)
def test_refuses_numbers_outside_of_the_slots(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table(**changes)


@pytest.mark.parametrize("after", [0, 3, -1])
def test_of_refuses_a_state_after_tokens_that_the_chunk_does_not_have(after: int) -> None:
    words = rf"chunks: expected states after 1 to 2 tokens, got \[{after}\]"
    with pytest.raises(ValueError, match=words):
        StateTable.of([(0, 2, {after: 1})], num_slots=3)
