"""Attention over keys and values in pages.

The kernels support head dims of 64, 80, 96, 128 and 256, and pages of dense numbers or affine
codes. MLX computes other head dims and formats, one sequence after the other.

The kernels are those of dense attention, with a block table that gives the address of each key. See
`attention/decode.py` and `attention/tiles.py` for their sizes.

- Prefill needs one launch, with a threadgroup for each tile of 32 query rows. Each threadgroup
  finds the sequence of its tile with a prefix sum over the sequences.
- Decode needs two launches: splits of the keys of each sequence, then the merge of the splits.

The two kernels round differently, so the phase chooses the kernel. In the phase "prefill" a chunk
of one token is a tile, as in a longer chunk. In the phase "decode" every token is a decode step.
Without a phase, sequences with one query are decode steps, and longer sequences are tiles. A call
with both kinds runs both kernels and selects between their outputs. The splits of a sequence depend
only on its own length, so that the sequence has the same bits in any batch.

The results of the splits take R H splits (D + 2) float32 numbers for R sequences: 17 MB for 64
sequences of 4,096 keys with 32 heads of 128. Their keys and values take 1 GB with 8 key heads in 16
bits.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, PageTable, Phase, Weight
from tinyllm_ops.checks import check_paged_attention

from tinyllm_kernels.metal.attention import HEAD_DIMS
from tinyllm_kernels.metal.attention.decode import (
    MAX_SPLITS,
    MIN_SPLIT,
    READ_FILES,
    SPLIT_FILES,
    THREADGROUP,
    decode_groups,
    decode_template,
    split_count,
)
from tinyllm_kernels.metal.attention.stored_keys import KeyFormat, StoredKeys
from tinyllm_kernels.metal.attention.tiles import TILE, TILE_FILES, tile_template
from tinyllm_kernels.metal.kernel import Kernel

_TABLE = ("block_tables", "cu_seqlens_q", "seq_lens", "window")
_FILES = (
    *READ_FILES,
    *SPLIT_FILES,
    *TILE_FILES,
    "paged_attention/pages.metal",
    "paged_attention/sequences.metal",
    "paged_attention/kernel.metal",
)
_SEQUENCES = """
    const auto sequences =
        sequences_of(block_tables, cu_seqlens_q, seq_lens, block_tables_shape, window);
"""


@functools.cache
def _decode_splits(keys: KeyFormat) -> Kernel:
    """Make the kernel for the splits of decode steps, for one format of keys and values."""
    declare_head = """
    threadgroup float sums[SIMDGROUPS * D], tops[SIMDGROUPS * ROWS], totals[SIMDGROUPS * ROWS];
    const uint3 at = threadgroup_position_in_grid;
    const HeadGroup heads = head_group_of_decode<ROWS>(at, q_shape, k_shape);
    const auto head = head_in_pages(sequences.pages(heads.batch), k_shape[2], heads.kv_head);
    """
    call = """
    attend_split<D, ROWS, SIMDGROUPS>(
        queries_from(q, q_strides, min(cu_seqlens_q[heads.batch], q_shape[0] - 1), heads), keys,
        values, scale, heads.row0, heads.group,
        keys_of_split<MIN_SPLIT, MAX_SPLITS>(sequences.visible_to_one(heads.batch), at.x),
        split_results_of<D, false>(partial, heads.first_head(q_shape[1]), at.x,
                                  threadgroups_per_grid.x),
        sums, tops, totals, thread_index_in_threadgroup);
    """
    return Kernel(
        f"paged_attention_splits{keys.suffix}",
        _FILES,
        ("q", *keys.inputs, *_TABLE, "scale"),
        ("partial",),
        _SEQUENCES + declare_head + keys.declaration + call,
        row_contiguous=False,
    )


_DECODE_MERGE = Kernel(
    "paged_attention_merge",
    _FILES,
    ("partial", *_TABLE, "kv_heads"),
    ("out",),
    _SEQUENCES
    + """
    merge_sequence<T, D, THREADS, MIN_SPLIT, MAX_SPLITS>(
        sequences, partial, out, partial_shape[1], kv_heads, partial_shape[2],
        threadgroup_position_in_grid.x, threadgroup_position_in_grid.y,
        thread_index_in_threadgroup);
    """,
)


@functools.cache
def _prefill(keys: KeyFormat) -> Kernel:
    """Make the kernel of prefill tiles, for one format of keys and values."""
    declare_head = """
    constexpr int STRIDE = COLUMNS + 8;
    threadgroup T tile[TILE * STRIDE];
    const int kv_head = threadgroup_position_in_grid.y, kv_heads = k_shape[1];
    const TileOfSequence at =
        tile_of_sequence(sequences, threadgroup_position_in_grid.x, q_shape[1] / kv_heads,
                         min_queries, thread_index_in_threadgroup % 32);
    const auto head = head_in_pages(sequences.pages(at.sequence), k_shape[2], kv_head);
    """
    call = """
    attend_tile_of_sequence<T, D, STRIDE>(sequences, at, q, keys, values, scale, out, q_shape,
                                          q_strides, kv_heads, kv_head, tile,
                                          thread_index_in_threadgroup);
    """
    return Kernel(
        f"paged_attention_tiles{keys.suffix}",
        _FILES,
        ("q", *keys.inputs, *_TABLE, "scale", "min_queries"),
        ("out",),
        _SEQUENCES + declare_head + keys.declaration + call,
        row_contiguous=False,
    )


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
    """Compute softmax(q k^T * scale) v of each sequence; see `tinyllm_ops.paged_attention`."""
    check_paged_attention(q, k, v, page_table, window)
    tokens, _, dim = q.shape
    counts = [end - start for start, end in pairwise(page_table.cu_seqlens_q)]
    if q.size == 0 or not any(counts):
        return mx.zeros(q.shape, q.dtype)
    stored = StoredKeys.of(k, v)
    if stored is None or dim not in HEAD_DIMS:
        return MLX.paged_attention(q, k, v, page_table, scale, window, phase=phase)
    if phase == "decode" and max(counts) > 1:
        page_table = _one_query_each(page_table)
        counts = [1] * sum(counts)
    call = _Call(q, stored, page_table, counts, dim**-0.5 if scale is None else scale, window)
    if phase == "prefill" or 1 not in counts:
        return call.prefill(1)
    if max(counts) == 1:
        return call.decode()
    is_step = [False] * tokens
    for start, count in zip(page_table.cu_seqlens_q, counts, strict=False):
        if count == 1:
            is_step[start] = True
    return mx.where(mx.array(is_step)[:, None, None], call.decode(), call.prefill(2))


def _one_query_each(page_table: PageTable) -> PageTable:
    """Return a page table in which each query is a sequence that ends with its own key."""
    block_tables = [
        table
        for table, (start, end) in zip(
            page_table.block_tables, pairwise(page_table.cu_seqlens_q), strict=True
        )
        for _ in range(start, end)
    ]
    return PageTable(
        block_tables=block_tables,
        cu_seqlens_q=range(page_table.count + 1),
        seq_lens=[position + 1 for position in page_table.positions],
        slot_mapping=page_table.slot_mapping,
        num_pages=page_table.num_pages,
        page_size=page_table.page_size,
    )


@dataclass(frozen=True, eq=False)
class _Call:
    """Arguments of one call.

    Attributes:
        q: queries.
        stored: pages of keys and values.
        page_table: the page table.
        counts: number of queries of each sequence.
        scale: factor of the scores.
        window: number of keys that a query attends to, or None for all.
    """

    q: Float[mx.array, "T H D"]
    stored: StoredKeys
    page_table: PageTable
    counts: Sequence[int]
    scale: float
    window: int | None

    def decode(self) -> Float[mx.array, "T H D"]:
        """Compute the sequences with one query. The rows of other sequences are zeros."""
        tokens, heads, dim = self.q.shape
        kv_heads = self.stored.leading_shape[1]
        longest = max(self.page_table.seq_lens)
        splits = split_count(longest if self.window is None else min(longest, self.window))
        sequences = len(self.counts)
        (partial,) = _decode_splits(self.stored.format)(
            (self.q, *self.stored.arrays, *self._table, self.scale),
            [((sequences, heads, splits, dim + 2), mx.float32)],
            threadgroups_per_grid=(splits, decode_groups(heads, kv_heads, dim), sequences),
            threads_per_threadgroup=THREADGROUP,
            template=[*decode_template(heads, kv_heads, dim), *self.stored.template],
        )
        (out,) = _DECODE_MERGE(
            (partial, *self._table, kv_heads),
            [(self.q.shape, self.q.dtype)],
            threadgroups_per_grid=(sequences, kv_heads, 1),
            threads_per_threadgroup=THREADGROUP,
            template=[
                *(("T", self.q.dtype), ("D", dim), ("THREADS", THREADGROUP[0])),
                *(("MIN_SPLIT", MIN_SPLIT), ("MAX_SPLITS", MAX_SPLITS)),
            ],
            init_value=None if self.counts.count(1) == tokens else 0.0,
        )
        return out

    def prefill(self, min_queries: int) -> Float[mx.array, "T H D"]:
        """Compute the sequences with `min_queries` or more queries. All other rows are zeros."""
        tokens, heads, dim = self.q.shape
        kv_heads = self.stored.leading_shape[1]
        group = heads // kv_heads
        chunks = [count for count in self.counts if count >= min_queries]
        (out,) = _prefill(self.stored.format)(
            (self.q, *self.stored.arrays, *self._table, self.scale, min_queries),
            [(self.q.shape, self.q.dtype)],
            threadgroups_per_grid=(sum(-(-count * group // TILE) for count in chunks), kv_heads, 1),
            threads_per_threadgroup=THREADGROUP,
            template=[*tile_template(self.q.dtype, dim), *self.stored.template],
            init_value=None if sum(chunks) == tokens else 0.0,
        )
        return out

    @property
    def _table(self) -> tuple[mx.array | int, ...]:
        """Values of the inputs `_TABLE`."""
        arrays = self.page_table.arrays
        return arrays.block_tables, arrays.cu_seqlens_q, arrays.seq_lens, self.window or 0
