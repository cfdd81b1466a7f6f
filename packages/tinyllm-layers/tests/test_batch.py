import mlx.core as mx
import pytest
from tinyllm_layers import Batch
from tinyllm_ops import PageTable, Phase, StateTable


@pytest.mark.parametrize(
    ("length", "phase", "expected"),
    [(1, None, "decode"), (2, None, "prefill"), (0, None, "prefill"), (1, "prefill", "prefill")],
)
def test_one_token_is_a_decode_step_unless_said_otherwise(
    length: int, phase: Phase | None, expected: Phase
) -> None:
    batch = Batch.at(5, 3, length, phase)
    assert (batch.phase, batch.rows, batch.length, batch.page_table) == (expected, 3, length, None)
    assert batch.positions == slice(5, 5 + length)


def test_refuses_a_negative_offset() -> None:
    with pytest.raises(ValueError, match="offset: expected a number from 0 on, got -1"):
        Batch.at(-1, 2, 4)


@pytest.mark.parametrize(("phase", "shape"), [("prefill", (1, 3)), ("decode", (3, 1))])
def test_tokens_of_pages_are_one_row_or_a_row_each(phase: Phase, shape: tuple[int, int]) -> None:
    pages = PageTable.of([([0, 1], 4, 6), ([2], 0, 1)], num_pages=3, page_size=4)
    batch = Batch.paged(pages, phase)
    assert (batch.phase, batch.rows, batch.length) == (phase, *shape)
    assert batch.page_table is pages
    assert isinstance(batch.positions, mx.array)
    assert (batch.positions.shape, batch.positions.flatten().tolist()) == (shape, [4, 5, 0])


def test_a_state_table_has_the_tokens_of_the_page_table() -> None:
    pages = PageTable.of([([0, 1], 4, 6), ([2], 0, 1)], num_pages=3, page_size=4)
    states = StateTable.of([(0, 2, {}), (-1, 1, {1: 1})], num_slots=2)
    assert Batch.paged(pages, "prefill", states).state_table is states
    with pytest.raises(ValueError, match=r"state_table: expected 3 tokens, as the page .* got 2"):
        Batch.paged(pages, "prefill", StateTable.rows(2, 1))
