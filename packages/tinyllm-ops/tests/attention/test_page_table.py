from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_ops import PageTable

# Tokens 5 and 6 of a sequence with pages 3 and 1, and token 0 of a sequence with page 2.
CHUNKS = [([3, 1], 5, 7), ([2], 0, 1)]


def table(**changes: object) -> PageTable:
    numbers: dict[str, object] = {
        "block_tables": [[3, 1], [2]],
        "cu_seqlens_q": [0, 2, 3],
        "seq_lens": [7, 1],
        "slot_mapping": [5, 6, 8],
        "num_pages": 4,
        "page_size": 4,
    }
    return PageTable(**numbers | changes)  # type: ignore[arg-type] # the keys are the fields


def test_of_lays_out_chunks_of_sequences() -> None:
    pages = PageTable.of(CHUNKS, num_pages=4, page_size=4)
    assert pages.block_tables == ((3, 1), (2,))
    assert pages.cu_seqlens_q == (0, 2, 3)
    assert pages.seq_lens == (7, 1)
    assert pages.slot_mapping == (5, 6, 8)  # page 1, offsets 1 and 2; page 2, offset 0
    assert (pages.count, pages.num_pages, pages.page_size) == (3, 4, 4)
    assert pages.positions == (5, 6, 0)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5),
    page_size=st.integers(1, 9),
)
def test_of_gives_each_token_the_slot_of_its_position(
    lengths: list[tuple[int, int]], page_size: int
) -> None:
    chunks, first = [], 0
    for start, more in lengths:
        blocks = -(-(start + more) // page_size)
        chunks.append((range(first, first + blocks)[::-1], start, start + more))
        first += blocks
    pages = PageTable.of(chunks, num_pages=first, page_size=page_size)
    tokens = [(own, at) for own, start, stop in chunks for at in range(start, stop)]
    assert pages.positions == tuple(at for _, at in tokens)
    for (own, at), slot in zip(tokens, pages.slot_mapping, strict=True):
        assert (slot // page_size, slot % page_size) == (own[at // page_size], at % page_size)


def test_arrays_hold_the_same_numbers_as_int32_and_are_made_once() -> None:
    pages = table()
    arrays = pages.arrays
    assert pages.arrays is arrays
    assert arrays.block_tables.tolist() == [[3, 1], [2, 0]]
    assert arrays.cu_seqlens_q.tolist() == [0, 2, 3]
    assert arrays.seq_lens.tolist() == [7, 1]
    assert arrays.positions.tolist() == [5, 6, 0]
    assert arrays.slot_mapping.tolist() == [5, 6, 8]
    assert {part.dtype for part in vars(arrays).values()} == {mx.int32}


def test_arrays_leave_out_pages_that_are_not_read() -> None:
    pages = table(block_tables=[[3, 1, 99, 2**40], [2, -1]])
    assert pages.block_tables == ((3, 1, 99, 2**40), (2, -1))
    assert pages.arrays.block_tables.tolist() == [[3, 1], [2, 0]]


@pytest.mark.parametrize("chunks", [[], [([], 0, 0)], [([2], 0, 0)]], ids=str)
def test_a_pass_may_have_no_tokens(chunks: list[tuple[list[int], int, int]]) -> None:
    pages = PageTable.of(chunks, num_pages=4, page_size=4)
    assert (pages.count, pages.positions) == (0, ())
    assert pages.arrays.block_tables.shape == (len(chunks), 0)
    assert pages.arrays.slot_mapping.shape == (0,)


def test_later_changes_of_the_callers_lists_do_not_reach_the_table() -> None:
    own, starts, lengths, slots = [3, 1], [0, 2], [7], [5, 6]
    pages = PageTable([own], starts, lengths, slots, num_pages=4, page_size=4)
    own[0], starts[0], lengths[0], slots[0] = 99, 1, 99, 99
    numbers = (pages.block_tables, pages.cu_seqlens_q, pages.seq_lens, pages.slot_mapping)
    assert numbers == (((3, 1),), (0, 2), (7,), (5, 6))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"page_size": 0}, "page_size, num_pages: expected at least 1 and 0, got 0, 4"),
        ({"num_pages": -1}, "page_size, num_pages: expected at least 1 and 0, got 4, -1"),
        ({"block_tables": [[3, 1]]}, "expected 2 and 3 entries for 2 seq_lens, got 1 and 3"),
        ({"cu_seqlens_q": [0, 2]}, "expected 2 and 3 entries for 2 seq_lens, got 2 and 2"),
        ({"seq_lens": [7]}, "expected 1 and 2 entries for 1 seq_lens, got 2 and 3"),
        ({"cu_seqlens_q": [-1, 2, 3]}, r"expected numbers from 0 to 3, .*, got \[-1, 2, 3\]"),
        ({"cu_seqlens_q": [1, 2, 3]}, r"expected numbers from 0 to 3, .*, got \[1, 2, 3\]"),
        ({"cu_seqlens_q": [0, 2, 4]}, r"expected numbers from 0 to 3, .*, got \[0, 2, 4\]"),
        ({"slot_mapping": [5, 6, 8, 9]}, r"expected numbers from 0 to 4, .*, got \[0, 2, 3\]"),
        ({"cu_seqlens_q": [0, 4, 3]}, "expected 0 to 1 queries of sequence 1, got -1"),
        ({"cu_seqlens_q": [0, 1, 3]}, "expected 0 to 1 queries of sequence 1, got 2"),
        ({"seq_lens": [1, 1]}, "expected 0 to 1 queries of sequence 0, got 2"),
        ({"seq_lens": [9, 1]}, "expected pages for 9 tokens in row 0, got 2 pages of 4"),
        ({"block_tables": [[3, 1], []]}, "expected pages for 1 tokens in row 1, got 0 pages of 4"),
        ({"block_tables": [[3, 4], [2]]}, r"expected pages from 0 to 3, got \[3, 4\] in row 0"),
        ({"block_tables": [[3, 1], [-1]]}, r"expected pages from 0 to 3, got \[-1\] in row 1"),
        ({"slot_mapping": [5, 6, 16]}, "expected slots from 0 to 15, got 5 to 16"),
        ({"slot_mapping": [5, 6, -1]}, "expected slots from 0 to 15, got -1 to 6"),
        ({"slot_mapping": [5, 6, 5]}, "expected each slot once, got 5 twice"),
    ],
)
def test_refuses_numbers_outside_of_the_pages(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table(**changes)


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (([3, 1], 5, 9), "expected 0 <= start <= stop <= 8, .* 2 pages of 4, got 5 to 9"),
        (([3, 1], -1, 2), "expected 0 <= start <= stop <= 8, .*, got -1 to 2"),
        (([3, 1], 3, 2), "expected 0 <= start <= stop <= 8, .*, got 3 to 2"),
        (([3, 4], 5, 7), r"expected pages from 0 to 3, got \[3, 4\] in row 0"),
    ],
)
def test_of_refuses_chunks_that_do_not_fit(
    chunk: tuple[Sequence[int], int, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        PageTable.of([chunk], num_pages=4, page_size=4)


def test_of_refuses_one_token_twice() -> None:
    with pytest.raises(ValueError, match="expected each slot once, got 5 twice"):
        PageTable.of([([3, 1], 5, 6), ([3, 1], 5, 6)], num_pages=4, page_size=4)
