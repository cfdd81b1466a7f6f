"""Attention over paged keys and values, and writes to their pages."""

import math
from functools import partial

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.checks import check_paged_attention, check_write_pages
from tinyllm_ops.opset import AttentionOp, Mask
from tinyllm_ops.page_table import PageTable
from tinyllm_ops.phase import Phase
from tinyllm_ops.quantization.tensor import Weight, map_arrays
from tinyllm_ops.reference.attention import scaled_dot_product_attention_grouped


def paged_attention(
    q: Float[mx.array, "T H D"],
    k: Weight,
    v: Weight,
    page_table: PageTable,
    scale: float | None = None,
    window: int | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "T H D"]:
    """softmax(q k^T * scale) v for R sequences, whose queries are concatenated in q.

    If sequence r has n queries and `length` keys, query i sees keys 0 to length - n + i. Key j is
    at offset `j % page_size` of page `block_tables[r][j // page_size]` (Kwon et al. 2023).

    The reference computes one sequence after the other, from a copy of its keys and values.

    Args:
        q: queries of all sequences.
        k: pages of keys, `P Hkv page D`, dense or quantized. Sequences may share pages.
        v: pages of values, `P Hkv page D`, dense or quantized.
        page_table: the queries and the pages of each sequence.
        scale: 1/sqrt(D) unless given.
        window: number of most recent keys that a query sees, the key of its own token included.
            Unless given, a query sees all keys.
        phase: as in `linear`. Unless given, a sequence with one query is a decode step.

    Raises:
        ValueError: if shapes do not fit, H is no multiple of Hkv, or the table was made for another
            number or size of pages.
    """
    check_paged_attention(q, k, v, page_table, window)
    return attend_by_sequence(
        scaled_dot_product_attention_grouped, q, k, v, page_table, scale, window
    )


def write_pages(pages: Weight, rows: Weight, page_table: PageTable) -> Weight:
    """Return `pages` with row t of `rows` written to slot `page_table.slot_mapping[t]`.

    Args:
        pages: arrays `P Hkv page D`, dense or quantized. MLX writes the arrays in place if nothing
            else refers to them when the graph is computed, and copies them otherwise.
        rows: keys or values `T Hkv D` in the format of `pages`.
        page_table: the slots.

    Raises:
        ValueError: if shapes, dtypes or formats differ.
    """
    check_write_pages(pages, rows, page_table)
    if page_table.count == 0:
        return pages
    slots, page_size = page_table.arrays.slot_mapping, page_table.page_size

    def written(pages: mx.array, rows: mx.array) -> mx.array:
        pages = pages[...]  # a second array object: the update must not change the caller's array
        pages[slots // page_size, :, slots % page_size] = rows
        return pages

    return map_arrays(written, pages, rows)


def attend_by_sequence(
    attend: AttentionOp,
    q: mx.array,
    k: Weight,
    v: Weight,
    page_table: PageTable,
    scale: float | None,
    window: int | None,
) -> mx.array:
    """Call `attend` for each sequence, with a contiguous copy of its keys and values.

    The arguments are as in `paged_attention`. `attend` is the op `attention` of any OpSet.
    """
    starts = page_table.cu_seqlens_q
    rows = [mx.zeros_like(q[:0])]
    for row, length in enumerate(page_table.seq_lens):
        if starts[row] == starts[row + 1]:
            continue
        queries = q[starts[row] : starts[row + 1]].swapaxes(0, 1)  # H n D
        used = mx.array(
            list(page_table.block_tables[row])[: math.ceil(length / page_table.page_size)]
        )
        gather = partial(_gather_tokens, pages=used.astype(mx.int32), length=length)
        keys, values = map_arrays(gather, k), map_arrays(gather, v)
        mask = _causal_mask(queries.shape[1], length, window)
        rows.append(attend(queries, keys, values, scale, mask).swapaxes(0, 1))
    return mx.concatenate(rows)


def _gather_tokens(stored: mx.array, pages: mx.array, length: int) -> mx.array:
    """Copy the first `length` tokens of the listed pages: `P Hkv page D` to `Hkv length D`."""
    _, heads, page_size, width = stored.shape
    tokens = stored[pages].swapaxes(0, 1)  # Hkv blocks page width
    return tokens.reshape(heads, pages.size * page_size, width)[:, :length]


def _causal_mask(queries: int, length: int, window: int | None) -> Mask:
    """Return the causal mask of the last `queries` of `length` tokens, limited to the window."""
    if window is None:
        return "causal"
    behind = mx.arange(queries)[:, None] + (length - queries) - mx.arange(length)
    return (behind >= 0) & (behind < window)
