"""Attention over keys and values in pages, by prompts and decoded tokens side by side.

The contract of `tinyllm_ops.paged_attention`, for head dims 64, 80, 96 and 128 and pages of numbers
or affine codes; MLX computes the rest, which reads back where the requests are.

These are the kernels of `tinyllm_kernels.metal.attention` (shapes, memory and registers are those
of its `decode.py` and `tiles.py`), which ask a block table for each key's row. Nothing is read
back: the host knows how many tokens and requests there are, not whose they are, so it launches as
many threadgroups as there could be work for, and each finds out what is its own
(`requests.metal`).

1. Parts of the keys of requests with one new token. (MAX_PARTS or what the widest block table can
   hold) x key heads x requests; those of the others write that they have seen nothing.
2. The output, each row by one threadgroup. The first groups are tiles of requests with several new
   tokens: T G / 32 of full ones, and a last one for each request, of which no more than T / 2 can
   have two tokens. One group more for each token and key head adds up the parts of a token that is
   alone in its request, writes zeros if it is nobody's, and leaves the others to their tiles.

What is summed over the parts is R H parts (D + 2) float32: 17 MB for 64 requests with 32 heads of
128, whose 16 parts of 256 keys are 1 GB with 8 key heads in 16 bits. A token gives the same bits
in any batch: how its request is cut, and by which kernel it is computed, depend on that request
alone.
"""

from __future__ import annotations

import functools

import mlx.core as mx
from jaxtyping import Float, Int32
from tinyllm_ops import MLX, Weight
from tinyllm_ops.contract import check_paged_attention

from tinyllm_kernels.metal.attention import HEAD_DIMS
from tinyllm_kernels.metal.attention.decode import (
    ATTEND_PART,
    GROUP,
    MAX_PARTS,
    MIN_PART,
    READ,
    decode_groups,
    decode_template,
    parts_at_most,
)
from tinyllm_kernels.metal.attention.stored_keys import KeyFormat, StoredKeys
from tinyllm_kernels.metal.attention.tiles import ATTEND_TILE, TILE
from tinyllm_kernels.metal.kernel import Kernel

_WHERE = ("block_table", "query_starts", "context_lengths", "scale", "window")
_FILES = (
    *READ,
    *ATTEND_PART,
    *ATTEND_TILE,
    "paged_attention/pages.metal",
    "paged_attention/requests.metal",
    "paged_attention/paged_attention.metal",
)
_REQUESTS = """
    const auto requests =
        requests_of(block_table, query_starts, context_lengths, block_table_shape, window);
"""


@functools.cache
def _parts(keys: KeyFormat) -> Kernel:
    """The first launch, for each format of keys."""
    place = """
    threadgroup float sums[SIMDGROUPS * D], tops[SIMDGROUPS * ROWS], totals[SIMDGROUPS * ROWS];
    const uint3 at = threadgroup_position_in_grid;
    const HeadGroup of = head_group_to_decode<ROWS>(at, q_shape, k_shape);
    const auto place = head_in_pages(requests.pages(of.batch), k_shape[2], of.kv_head);
    """
    attend = """
    attend_part<D, ROWS, SIMDGROUPS>(
        queries_from(q, q_strides, min(query_starts[of.batch], q_shape[0] - 1), of), keys, values,
        scale, of.row0, of.group,
        part_of<MIN_PART, MAX_PARTS>(requests.visible_to_one(of.batch), at.x),
        part_results_of<D, false>(partial, of.first_head(q_shape[1]), at.x,
                                  threadgroups_per_grid.x),
        sums, tops, totals, thread_index_in_threadgroup);
    """
    return Kernel(
        f"paged_attention_parts{keys.name}",
        _FILES,
        ("q", *keys.inputs, *_WHERE),
        ("partial",),
        _REQUESTS + place + keys.body + attend,
        row_contiguous=False,
    )


@functools.cache
def _results(keys: KeyFormat) -> Kernel:
    """The second launch, for each format of keys."""
    place = """
    constexpr int STRIDE = D + 8;
    threadgroup T tile[TILE * STRIDE];
    const int x = threadgroup_position_in_grid.x, kv_head = threadgroup_position_in_grid.y;
    const int thread_index = thread_index_in_threadgroup, kv_heads = k_shape[1];
    if (x >= tiles) {
      put_token<T, D, THREADS, MIN_PART, MAX_PARTS>(requests, partial, out, q_shape, kv_heads,
                                                    partial_shape[2], x - tiles, kv_head,
                                                    thread_index);
      return;
    }
    const TileOfRequest at =
        tile_of_request(requests, x, q_shape[1] / kv_heads, thread_index % 32);
    if (at.request < 0) return;
    const auto place = head_in_pages(requests.pages(at.request), k_shape[2], kv_head);
    """
    attend = """
    attend_tile_of_request<T, D, STRIDE>(requests, at, q, keys, values, scale, out, q_shape,
                                         q_strides, kv_heads, kv_head, tile, thread_index);
    """
    return Kernel(
        f"paged_attention{keys.name}",
        _FILES,
        ("q", *keys.inputs, *_WHERE, "partial", "tiles"),
        ("out",),
        _REQUESTS + place + keys.body + attend,
        row_contiguous=False,
    )


def paged_attention(
    q: Float[mx.array, "T H D"],
    k: Weight,
    v: Weight,
    block_table: Int32[mx.array, "R blocks"],
    query_starts: Int32[mx.array, "R+1"],
    context_lengths: Int32[mx.array, "R"],
    scale: float | None = None,
    window: int | None = None,
) -> Float[mx.array, "T H D"]:
    """Each request's tokens against its own pages, in two launches."""
    check_paged_attention(q, k, v, block_table, query_starts, context_lengths, window)
    if q.size == 0 or k.shape[0] == 0 or block_table.size == 0:
        return mx.zeros(q.shape, q.dtype)
    where = (block_table, query_starts, context_lengths)
    tokens, heads, dim = q.shape
    stored = StoredKeys.of(k, v)
    if stored is None or dim not in HEAD_DIMS:
        return MLX.paged_attention(q, k, v, *where, scale, window)
    requests, blocks = block_table.shape
    _, kv_heads, page = stored.lead
    inputs = (
        *(q, *stored.arrays),
        *(mx.contiguous(x) for x in where),  # no copy, if they are
        *(dim**-0.5 if scale is None else scale, window or 0),
    )
    parts = parts_at_most(blocks * page if window is None else min(blocks * page, window))
    (partial,) = _parts(stored.format)(
        inputs,
        [((requests, heads, parts, dim + 2), mx.float32)],
        groups=(parts, decode_groups(heads, kv_heads), requests),
        group=GROUP,
        template=[*decode_template(heads, kv_heads, dim), *stored.template],
    )
    group = heads // kv_heads
    tiles = tokens * group // TILE + min(requests, tokens // 2) if tokens > 1 else 0
    (out,) = _results(stored.format)(
        (*inputs, partial, tiles),
        [(q.shape, q.dtype)],
        groups=(tiles + tokens, kv_heads, 1),
        group=GROUP,
        template=[
            *(("T", q.dtype), ("D", dim), ("THREADS", GROUP[0])),
            *(("MIN_PART", MIN_PART), ("MAX_PARTS", MAX_PARTS)),
            *stored.template,
        ],
    )
    return out
