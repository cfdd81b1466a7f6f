"""Prefill attention: 32 query rows of a sequence against blocks of 32 keys.

Limited by arithmetic, 4 L S D H. A threadgroup has 32 rows, eight for each of 4 simdgroups, and
reads 32 keys at a time. A simdgroup keeps D/8 matrices of q, as many of sums, and 4 of scores: 72
registers a thread at D = 128 (q in 16 bits has registers of its own). Keys and then values pass
through one tile of threadgroup memory, 32 (D + 8) numbers: 8.7 KB in 16 bits and 17.4 in float32.
Two tiles would exceed the 32 KB of a threadgroup. Rows are padded by 8 numbers so that the rows of
a matrix begin in different banks. Blocks after the last visible key of the tile are not read.

Packed keys are dequantized on their way into the tile, once for 32 rows, and rounded to the dtype
of q there.
"""

from __future__ import annotations

import functools
import math

import mlx.core as mx
from jaxtyping import Float

from tinyllm_kernels.metal.attention.decode import GROUP, READ
from tinyllm_kernels.metal.attention.stored_keys import KeyFormat, StoredKeys
from tinyllm_kernels.metal.kernel import Kernel

TILE = 32  # query rows, as in key_tile.metal

ATTEND_TILE = ("attention/key_tile.metal", "attention/tiles.metal")


@functools.cache
def _tiles(keys: KeyFormat) -> Kernel:
    """Make the kernel for one format of keys."""
    select = """
    constexpr int STRIDE = D + 8;
    threadgroup T tile[TILE * STRIDE];
    const HeadGroup heads =
        head_group_of_tile<TILE>(threadgroup_position_in_grid, q_shape, k_shape);
    const HeadInBatch head = {heads.batch, heads.kv_head};
    """
    attend = """
    attend_tile<T, D, STRIDE>(queries_of(q, q_strides, heads), keys, values, scale, heads.row0,
                              heads.group * q_shape[2], before, k_shape[2], 0,
                              results_of(out, q_shape, heads), tile, thread_index_in_threadgroup);
    """
    return Kernel(
        f"attention_tiles{keys.name}",
        files=(*READ, "attention/dense.metal", *ATTEND_TILE),
        inputs=("q", *keys.inputs, "scale", "before"),
        outputs=("out",),
        body=select + keys.body + attend,
        row_contiguous=False,
    )


def tiles(
    q: Float[mx.array, "B H L D"], stored: StoredKeys, scale: float, *, causal: bool
) -> Float[mx.array, "B H L D"]:
    """Attend with any number of queries a head. If causal, they are the last tokens of the keys."""
    rows, heads, length, dim = q.shape
    _, kv_heads, keys = stored.lead
    before = keys - length if causal else keys  # the first query sees one key more
    (out,) = _tiles(stored.format)(
        (q, *stored.arrays, scale, before),
        [(q.shape, q.dtype)],
        groups=(math.ceil(heads // kv_heads * length / TILE), kv_heads, rows),
        group=GROUP,
        template=[("T", q.dtype), ("D", dim), *stored.template],
    )
    return out
