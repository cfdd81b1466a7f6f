from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import PageTable, QuantizationMode, QuantizedTensor, Weight, quantize, write_pages
from tinyllm_ops.testing import exact, normal, page_table

FORMATS: list[tuple[QuantizationMode, int, int] | None] = [
    None,
    ("affine", 4, 32),
    ("affine", 8, 64),
    ("mxfp8", 8, 32),
]


def inputs(
    pages: PageTable, dtype: mx.Dtype, form: tuple[QuantizationMode, int, int] | None
) -> tuple[Weight, Weight]:
    """Return pages full of random numbers, and the keys `T 2 64` of a pass."""
    stored = normal((pages.num_pages, 2, pages.page_size, 64), dtype, seed=1)
    rows = normal((pages.count, 2, 64), dtype, seed=2)
    if form is None:
        return stored, rows
    mode, bits, group = form
    return quantize(stored, group, bits, mode), quantize(rows, group, bits, mode)


def expected(stored: Weight, rows: Weight, pages: PageTable) -> np.ndarray:
    after = exact(stored).copy()
    for row, slot in zip(exact(rows), pages.slot_mapping, strict=True):
        after[slot // pages.page_size, :, slot % pages.page_size] = row
    return after


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("page", [1, 4, 16])
def test_rows_are_written_to_their_slots_and_nothing_else_changes(
    device: mx.Device, dtype: mx.Dtype, form: tuple[QuantizationMode, int, int] | None, page: int
) -> None:
    pages = page_table([(5, 5), (3, 20), (1, 9), (0, 7)], page, seed=2)
    stored, rows = inputs(pages, dtype, form)
    after = write_pages(stored, rows, pages)
    assert type(after) is type(stored)
    assert np.array_equal(exact(after), expected(stored, rows, pages))


def test_no_tokens_change_nothing(device: mx.Device) -> None:
    pages = page_table([(0, 3)], 4, seed=4)
    stored, rows = inputs(pages, mx.float32, None)
    assert np.array_equal(exact(write_pages(stored, rows, pages)), exact(stored))


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_the_callers_arrays_stay_as_they_are(
    device: mx.Device, form: tuple[QuantizationMode, int, int] | None
) -> None:
    pages = page_table([(3, 9)], 4, seed=5)
    stored, rows = inputs(pages, mx.float32, form)
    before = exact(stored)
    after = write_pages(stored, rows, pages)
    mx.eval(*(after.arrays if isinstance(after, QuantizedTensor) else [after]))
    assert np.array_equal(exact(stored), before)
    assert not np.array_equal(exact(after), before)


def test_pages_without_another_holder_are_written_in_place() -> None:
    """The peak of memory shows a copy, which needs the memory of all pages a second time."""
    with mx.stream(mx.cpu):
        pages = page_table([(1, 3)], 16, seed=6)
        stored = mx.zeros((pages.num_pages, 8, 16, 1024))
        rows = mx.ones((1, 8, 1024))
        mx.eval(stored, rows, *vars(pages.arrays).values())
        size = stored.nbytes
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        held = stored
        stored = write_pages(stored, rows, pages)  # type: ignore[assignment]
        mx.eval(stored)
        # MLX copied all pages, because `held` refers to the old array.
        assert mx.get_peak_memory() - before >= size
        del held
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        stored = write_pages(stored, 2 * rows, pages)  # type: ignore[assignment]
        mx.eval(stored)
        assert mx.get_peak_memory() - before < size / 2


PAGES = PageTable.of([([3, 1], 0, 3)], num_pages=4, page_size=2)
STORED, ROWS = mx.zeros((4, 2, 2, 64)), mx.zeros((3, 2, 64))


def packed(
    x: mx.array, *, group: int = 64, bits: int = 4, mode: QuantizationMode = "affine"
) -> QuantizedTensor:
    return quantize(x, group, bits, mode)


@pytest.mark.parametrize(
    ("stored", "rows", "words"),
    [
        (STORED[0], ROWS, r"pages: expected axes P Hkv page D, got shape \(2, 2, 64\)"),
        (STORED[:3], ROWS, r"pages: expected 4 pages of 2 tokens, .*, got shape \(3, 2, 2, 64\)"),
        (STORED[:, :, :1], ROWS, r"pages: expected 4 pages of 2 tokens, .* \(4, 2, 1, 64\)"),
        (STORED, ROWS[:2], r"rows: expected shape \(3, 2, 64\), got \(2, 2, 64\)"),
        (STORED, ROWS[:, :1], r"rows: expected shape \(3, 2, 64\), got \(3, 1, 64\)"),
        (STORED, ROWS[..., :1], r"rows: expected shape \(3, 2, 64\), got \(3, 2, 1\)"),
        (STORED, ROWS.astype(mx.float16), r"rows: expected dtype .*float32, got .*float16"),
        (STORED, packed(ROWS), "rows: .* both dense or both quantized"),
        (packed(STORED), ROWS, "rows: .* both dense or both quantized"),
        (
            packed(STORED),
            packed(ROWS, bits=8),
            r"expected 4 bits in groups of 64 \(affine\), got 8",
        ),
        (packed(STORED), packed(ROWS, group=32), "expected 4 bits in .* 64 .*, got 4 .* 32"),
        (
            packed(STORED, group=32, bits=8),
            packed(ROWS, group=32, bits=8, mode="mxfp8"),
            r"expected 8 bits in groups of 32 \(affine\), got 8 in groups of 32 \(mxfp8\)",
        ),
        (
            packed(STORED),
            packed(ROWS.astype(mx.float16)),
            r"rows.scales: expected dtype .*float32, got .*float16",
        ),
    ],
)
def test_refuses_rows_that_the_pages_cannot_hold(
    unchecked: None, stored: Weight, rows: Weight, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        write_pages(stored, rows, PAGES)


@pytest.mark.parametrize("form", [lambda x: x, packed], ids=["dense", "packed"])
def test_takes_rows_that_fit(form: Callable[[mx.array], Weight]) -> None:
    assert write_pages(form(STORED), form(ROWS), PAGES).shape == STORED.shape
