"""Attention over dense keys: an online softmax for one token, tiles for many.

softmax(q k^T * scale) v, the contract of `tinyllm_ops.scaled_dot_product_attention_grouped`, for
head dims 64, 80, 96 and 128, without a mask or with the causal one. MLX computes the rest: masks
that are arrays, other head dims, packed keys.

Keys and values are read through their strides, as the cache has them, once for all heads of a
group: query i of head g is row i G + g of the G = H / Hkv heads that share them.

`decode.metal`, L = 1. A token is limited by the bytes of keys and values, 4 S D Hkv in 16 bits.
    A threadgroup is 4 simdgroups; each takes every fourth key, a lane D/32 columns of it. Up to
    ROWS = 8 heads at a time: each keeps D/32 numbers of q and as many sums, 64 floats a thread at
    D = 128, beside 16 for the state of the softmax and 8 for a key and its value. Threadgroup
    memory is D floats for each simdgroup and 2 numbers a row: 2.3 KB.
    Hkv groups would leave a GPU idle, so the keys are cut into parts, each a threadgroup. A part
    has at least 256 keys: what it writes, D + 2 floats a row, is then 3% of what it reads, with
    8 rows at D = 128 in 16 bits. There are at most 16 parts, which then grow: 128 groups of a model
    with 8 key heads. Its size depends on S alone, so that a request gives the same bits in any
    batch. A second kernel adds the parts up, one thread a column.

`tiles.metal`, L > 1. Limited by arithmetic, 4 L S D H. A threadgroup has 32 rows, eight for each of
    4 simdgroups, and goes over 32 keys at a time: D/8 matrices of q, as many of sums, 4 of scores,
    72 registers a thread at D = 128 (16 bits of q in a register of their own). Keys, and then
    values, pass through one tile of threadgroup memory, 32 (D + 8) numbers: 8.7 KB in 16 bits and
    17.4 in float32, where two tiles would exceed the 32 KB that a group may have. Rows are padded
    by 8 numbers so that the rows of a matrix begin in different banks. Blocks after the last
    visible key of the tile are not read.

None of these numbers was chosen by measuring: nobody has run this on a Mac yet.
"""

from __future__ import annotations

import math

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, QuantizedTensor, Weight
from tinyllm_ops.contract import check_attention

from tinyllm_kernels.metal.kernel import SIMD, Kernel

HEAD_DIMS = (64, 80, 96, 128)
SIMDGROUPS = 4  # of a threadgroup, in both kernels
GROUP = (SIMD * SIMDGROUPS, 1, 1)
MAX_ROWS = 8  # heads that decode together
MIN_PART = 256  # keys
MAX_PARTS = 16
TILE = 32  # rows, as in key_tile.metal

_DENSE = ("attention/rows.metal", "attention/head_group.metal", "attention/dense.metal")

_DECODE = Kernel(
    "attention_decode",
    files=(*_DENSE, "attention/parts.metal", "attention/decode.metal"),
    inputs=("q", "k", "v", "scale"),
    outputs=("out",),
    body="""
    threadgroup float sums[SIMDGROUPS * D], tops[SIMDGROUPS * ROWS], totals[SIMDGROUPS * ROWS];
    const uint3 at = threadgroup_position_in_grid;
    const HeadGroup of = head_group_to_decode<ROWS>(at, q_shape, k_shape);
    attend_part<D, ROWS, SIMDGROUPS>(
        queries_of(q, q_strides, of), rows_of(k, k_strides, of), rows_of(v, v_strides, of), scale,
        of.row0, of.group, part_of<MIN_PART, MAX_PARTS>({0, k_shape[2]}, at.x),
        part_results_of<D, WHOLE>(out, of.first_head(q_shape[1]), at.x, threadgroups_per_grid.x),
        sums, tops, totals, thread_index_in_threadgroup);
    """,
    row_contiguous=False,
)
_MERGE = Kernel(
    "attention_merge",
    files=("attention/rows.metal", "attention/parts.metal"),
    inputs=("partial",),
    outputs=("out",),
    body="""
    const uint row = threadgroup_position_in_grid.x, parts = partial_shape[2];
    const uint column = thread_index_in_threadgroup;
    const device float* parts_of_row = partial + row * parts * (D + 2);
    out[row * D + column] = T(merge_parts<D>(parts_of_row, parts, column));
    """,
)
_TILES = Kernel(
    "attention_tiles",
    files=(*_DENSE, "attention/key_tile.metal", "attention/tiles.metal"),
    inputs=("q", "k", "v", "scale", "before"),
    outputs=("out",),
    body="""
    constexpr int STRIDE = D + 8;
    threadgroup T tile[TILE * STRIDE];
    const HeadGroup of = head_group_of_tile<TILE>(threadgroup_position_in_grid, q_shape, k_shape);
    attend_tile<T, D, STRIDE>(
        queries_of(q, q_strides, of), rows_of(k, k_strides, of), rows_of(v, v_strides, of), scale,
        of.row0, of.group * q_shape[2], before, k_shape[2], 0, results_of(out, q_shape, of), tile,
        thread_index_in_threadgroup);
    """,
    row_contiguous=False,
)


def attention(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Float[mx.array, "..."] | str | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """Decode one token, or go through many by tiles; MLX computes what neither kernel knows."""
    check_attention(q, k, v, mask)
    *batch, _, length, dim = q.shape
    if q.size == 0 or k.shape[-2] == 0:
        return mx.zeros(q.shape, q.dtype)
    if isinstance(k, QuantizedTensor) or isinstance(v, QuantizedTensor):
        return MLX.attention(q, k, v, scale, mask)
    if isinstance(mask, mx.array) or dim not in HEAD_DIMS:
        return MLX.attention(q, k, v, scale, mask)
    scale = dim**-0.5 if scale is None else scale
    rows = math.prod(batch)
    queries, keys, values = (x.reshape(rows, *x.shape[-3:]) for x in (q, k, v))
    if length == 1:
        out = decode(queries, keys, values, scale)
    else:
        out = tiles(queries, keys, values, scale, causal=isinstance(mask, str))
    return out.reshape(q.shape)


def decode(
    q: Float[mx.array, "B H 1 D"],
    k: Float[mx.array, "B Hkv S D"],
    v: Float[mx.array, "B Hkv S D"],
    scale: float,
) -> Float[mx.array, "B H 1 D"]:
    """One query for each head, which sees all keys."""
    rows, heads, _, dim = q.shape
    kv_heads, keys = k.shape[1:3]
    parts = parts_at_most(keys)
    partial = ((rows, heads, parts, dim + 2), mx.float32)
    (out,) = _DECODE(
        (q, k, v, scale),
        [(q.shape, q.dtype) if parts == 1 else partial],
        groups=(parts, decode_groups(heads, kv_heads), rows),
        group=GROUP,
        template=[*decode_template(heads, kv_heads, dim), ("WHOLE", parts == 1)],
    )
    if parts > 1:
        (out,) = _MERGE(
            (out,),
            [(q.shape, q.dtype)],
            groups=(rows * heads, 1, 1),
            group=(dim, 1, 1),
            template=[("T", q.dtype), ("D", dim)],
        )
    return out


def tiles(
    q: Float[mx.array, "B H L D"],
    k: Float[mx.array, "B Hkv S D"],
    v: Float[mx.array, "B Hkv S D"],
    scale: float,
    *,
    causal: bool,
) -> Float[mx.array, "B H L D"]:
    """Several queries for each head: the last ones of a text if it is causal."""
    rows, heads, length, dim = q.shape
    kv_heads, keys = k.shape[1:3]
    before = keys - length if causal else keys  # the first query sees these
    (out,) = _TILES(
        (q, k, v, scale, before),
        [(q.shape, q.dtype)],
        groups=(math.ceil(heads // kv_heads * length / TILE), kv_heads, rows),
        group=GROUP,
        template=[("T", q.dtype), ("D", dim)],
    )
    return out


def parts_at_most(keys: int) -> int:
    """Parts of what sees so many keys or fewer."""
    return min(MAX_PARTS, math.ceil(keys / MIN_PART))


def decode_groups(heads: int, kv_heads: int) -> int:
    """Threadgroups that the heads of a request take."""
    return kv_heads * math.ceil(heads // kv_heads / MAX_ROWS)


def decode_template(heads: int, kv_heads: int, dim: int) -> list[tuple[str, int]]:
    """Constants of a kernel that decodes."""
    return [
        ("D", dim),
        ("ROWS", min(heads // kv_heads, MAX_ROWS)),
        ("SIMDGROUPS", SIMDGROUPS),
        ("MIN_PART", MIN_PART),
        ("MAX_PARTS", MAX_PARTS),
    ]
