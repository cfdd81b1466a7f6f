"""Many tokens of each request: 32 rows of queries against 32 keys after the other.

Limited by arithmetic, 4 L S D H. A threadgroup has 32 rows, eight for each of 4 simdgroups, and
goes over 32 keys at a time: D/8 matrices of q, as many of sums, 4 of scores, 72 registers a thread
at D = 128 (16 bits of q in a register of their own). Keys, and then values, pass through one tile
of threadgroup memory, 32 (D + 8) numbers: 8.7 KB in 16 bits and 17.4 in float32, where two tiles
would exceed the 32 KB that a group may have. Rows are padded by 8 numbers so that the rows of a
matrix begin in different banks. Blocks after the last visible key of the tile are not read.

Packed keys are decoded on their way into the tile, once for 32 rows, and rounded to the dtype of q
there.
"""

from __future__ import annotations

import functools
import math

import mlx.core as mx
from jaxtyping import Float

from tinyllm_kernels.metal.attention.decode import GROUP, READ
from tinyllm_kernels.metal.attention.stored_keys import KeyFormat, StoredKeys
from tinyllm_kernels.metal.kernel import Kernel

TILE = 32  # rows, as in key_tile.metal

ATTEND_TILE = ("attention/key_tile.metal", "attention/tiles.metal")


@functools.cache
def _tiles(keys: KeyFormat) -> Kernel:
    """A kernel for each format."""
    place = """
    constexpr int STRIDE = D + 8;
    threadgroup T tile[TILE * STRIDE];
    const HeadGroup of = head_group_of_tile<TILE>(threadgroup_position_in_grid, q_shape, k_shape);
    const HeadInBatch place = {of.batch, of.kv_head};
    """
    attend = """
    attend_tile<T, D, STRIDE>(queries_of(q, q_strides, of), keys, values, scale, of.row0,
                              of.group * q_shape[2], before, k_shape[2], 0,
                              results_of(out, q_shape, of), tile, thread_index_in_threadgroup);
    """
    return Kernel(
        f"attention_tiles{keys.name}",
        files=(*READ, "attention/dense.metal", *ATTEND_TILE),
        inputs=("q", *keys.inputs, "scale", "before"),
        outputs=("out",),
        body=place + keys.body + attend,
        row_contiguous=False,
    )


def tiles(
    q: Float[mx.array, "B H L D"], stored: StoredKeys, scale: float, *, causal: bool
) -> mx.array:
    """Several queries for each head: the last ones of a text if it is causal."""
    rows, heads, length, dim = q.shape
    _, kv_heads, keys = stored.lead
    before = keys - length if causal else keys  # the first query sees these
    (out,) = _tiles(stored.format)(
        (q, *stored.arrays, scale, before),
        [(q.shape, q.dtype)],
        groups=(math.ceil(heads // kv_heads * length / TILE), kv_heads, rows),
        group=GROUP,
        template=[("T", q.dtype), ("D", dim), *stored.template],
    )
    return out
