"""Prefill attention: 32 query rows of a sequence against blocks of 32 keys.

The time depends on the arithmetic, 4 L S D H operations. A threadgroup computes 32 query rows,
eight for each of four simdgroups, and reads 32 keys at a time. A simdgroup keeps D/8 matrices of q,
D/8 matrices of sums, and four matrices of scores. At D = 128 these take 72 registers of a thread.
At D = 256 they take 136, or 104 with 16-bit queries.

Keys, and after them values, pass through one tile of threadgroup memory, 32 (D + 8) numbers: at
D = 128 8.7 KB in 16 bits and 17.4 KB in float32. Two tiles would exceed the 32 KB of a threadgroup,
and so would one tile of 256 columns in float32. Such keys pass through the tile in two halves of
128 columns. The order of all sums is the same. Rows are padded by 8 numbers so that the rows of a
matrix begin in different banks. Blocks after the last visible key of the tile are not read.

Packed keys are dequantized when they are copied into the tile, once for 32 rows, and rounded to the
dtype of q.
"""

import functools
import math

import mlx.core as mx
from jaxtyping import Float

from tinyllm_kernels.metal.attention.decode import READ_FILES, THREADGROUP
from tinyllm_kernels.metal.attention.stored_keys import KeyFormat, StoredKeys
from tinyllm_kernels.metal.kernel import Kernel

TILE = 32  # query rows, as in key_tile.metal
ROW_BYTES = 512  # of a tile, without padding: 256 columns in 16 bits, or 128 in float32

TILE_FILES = ("attention/key_tile.metal", "attention/tiles.metal")


@functools.cache
def _tiles(keys: KeyFormat) -> Kernel:
    """Make the kernel for one format of keys and values."""
    declare_head = """
    constexpr int STRIDE = COLUMNS + 8;
    threadgroup T tile[TILE * STRIDE];
    const HeadGroup heads =
        head_group_of_tile<TILE>(threadgroup_position_in_grid, q_shape, k_shape);
    const HeadInBatch head = {heads.batch, heads.kv_head};
    """
    call = """
    attend_tile<T, D, STRIDE>(queries_of(q, q_strides, heads), keys, values, scale, heads.row0,
                              heads.group * q_shape[2], before, k_shape[2], 0,
                              results_of(out, q_shape, heads), tile, thread_index_in_threadgroup);
    """
    return Kernel(
        f"attention_tiles{keys.suffix}",
        files=(*READ_FILES, "attention/dense.metal", *TILE_FILES),
        inputs=("q", *keys.inputs, "scale", "before"),
        outputs=("out",),
        body=declare_head + keys.declaration + call,
        row_contiguous=False,
    )


def tiles(
    q: Float[mx.array, "B H L D"], stored: StoredKeys, scale: float, *, causal: bool
) -> Float[mx.array, "B H L D"]:
    """Compute any number of queries. If causal, the queries are the last tokens of the keys."""
    rows, heads, length, dim = q.shape
    _, kv_heads, keys = stored.leading_shape
    before = keys - length if causal else keys  # keys before the key of the first query
    (out,) = _tiles(stored.format)(
        (q, *stored.arrays, scale, before),
        [(q.shape, q.dtype)],
        threadgroups_per_grid=(math.ceil(heads // kv_heads * length / TILE), kv_heads, rows),
        threads_per_threadgroup=THREADGROUP,
        template=[*tile_template(q.dtype, dim), *stored.template],
    )
    return out


def tile_template(dtype: mx.Dtype, dim: int) -> list[tuple[str, mx.Dtype | int]]:
    """Return the template arguments of a prefill kernel for dense keys.

    `COLUMNS`, a divisor of `D`, is the number of columns of a key that the tile holds at a time.
    """
    return [("T", dtype), ("D", dim), ("COLUMNS", min(dim, ROW_BYTES // dtype.size))]
