"""Decode attention: one query of each head, with an online softmax over splits of the keys.

The time of a decode step depends on the bytes of keys and values, 4 S D Hkv in 16 bits. A
threadgroup has four simdgroups. A simdgroup reads every fourth key, and a lane computes D/32
columns. Up to eight query heads share a threadgroup, or four at D = 256. For each head, a thread
keeps D/32 numbers of q and D/32 sums in registers. For eight heads at D = 128, or four at D = 256,
these are 64 floats. The state of the softmax takes at most 16 more, a key and its value 8 or 16.
Threadgroup memory has D floats for each simdgroup and two numbers for each row and simdgroup: 2.3
KB at D = 128.

One threadgroup for each of the Hkv key heads would leave a GPU idle. The keys are therefore divided
into splits, as in flash-decoding, and each split has a threadgroup:

- A split has at least 256 keys. Its output is D + 2 floats for each row. With 8 rows at D = 128,
  this is 3% of its input in 16 bits, 6% of 8-bit codes and 11% of 4-bit codes.
- There are at most 16 splits, which are 128 threadgroups for a model with 8 key heads. Longer
  sequences have larger splits.
- The size of a split depends only on S, so that a sequence has the same bits in any batch.
- A second kernel merges the splits, with one thread for each column.

Neighboring lanes share a word of packed keys (32 / BITS codes), a scale and a bias, and read them
in one access. Dequantizing a number takes a shift, a mask, a multiplication and an addition, once
for all heads of the group.
"""

import functools
import math

import mlx.core as mx
from jaxtyping import Float

from tinyllm_kernels.metal.attention.stored_keys import KeyFormat, StoredKeys
from tinyllm_kernels.metal.kernel import SIMD, Kernel

SIMDGROUPS = 4
THREADGROUP = (SIMD * SIMDGROUPS, 1, 1)
MAX_ROWS = 8  # query heads of a threadgroup
MAX_NUMBERS = 1024  # numbers of q of a threadgroup: 8 heads of 128, or 4 of 256
MIN_SPLIT = 256  # smallest number of keys in a split
MAX_SPLITS = 16

READ_FILES = (
    "codes.metal",
    "attention/rows.metal",
    "attention/packed_rows.metal",
    "attention/head_group.metal",
)
SPLIT_FILES = ("attention/splits.metal", "attention/decode.metal")

_MERGE = Kernel(
    "attention_merge",
    files=("attention/rows.metal", "attention/splits.metal"),
    inputs=("partial",),
    outputs=("out",),
    body="""
    const uint row = threadgroup_position_in_grid.x, splits = partial_shape[2];
    const uint column = thread_index_in_threadgroup;
    const device float* splits_of_row = partial + row * splits * (D + 2);
    out[row * D + column] = T(merge_splits<D>(splits_of_row, splits, column));
    """,
)


@functools.cache
def _decode(keys: KeyFormat) -> Kernel:
    """Make the kernel for one format of keys and values."""
    declare_head = """
    threadgroup float sums[SIMDGROUPS * D], tops[SIMDGROUPS * ROWS], totals[SIMDGROUPS * ROWS];
    const uint3 at = threadgroup_position_in_grid;
    const HeadGroup heads = head_group_of_decode<ROWS>(at, q_shape, k_shape);
    const HeadInBatch head = {heads.batch, heads.kv_head};
    """
    call = """
    attend_split<D, ROWS, SIMDGROUPS>(
        queries_of(q, q_strides, heads), keys, values, scale, heads.row0, heads.group,
        keys_of_split<MIN_SPLIT, MAX_SPLITS>({0, k_shape[2]}, at.x),
        split_results_of<D, WHOLE>(out, heads.first_head(q_shape[1]), at.x,
                                   threadgroups_per_grid.x),
        sums, tops, totals, thread_index_in_threadgroup);
    """
    return Kernel(
        f"attention_decode{keys.suffix}",
        files=(*READ_FILES, "attention/dense.metal", *SPLIT_FILES),
        inputs=("q", *keys.inputs, "scale"),
        outputs=("out",),
        body=declare_head + keys.declaration + call,
        row_contiguous=False,
    )


def decode(
    q: Float[mx.array, "B H L D"], stored: StoredKeys, scale: float, *, causal: bool
) -> Float[mx.array, "B H L D"]:
    """Compute each query as a decode step of its own, over its visible keys.

    If causal, the queries are the last tokens of the keys.
    """
    length, keys = q.shape[2], stored.leading_shape[2]
    if length == 1:
        return _decode_step(q, stored, scale)
    steps = []
    for i in range(length):
        query, visible = q[:, :, i : i + 1], keys - length + i + 1 if causal else keys
        if visible > 0:
            steps.append(_decode_step(query, stored.first(visible), scale))
        else:
            steps.append(mx.zeros_like(query))
    return mx.concatenate(steps, axis=2)


def _decode_step(q: Float[mx.array, "B H 1 D"], stored: StoredKeys, scale: float) -> mx.array:
    """Compute one query of each head over all keys."""
    rows, heads, _, dim = q.shape
    _, kv_heads, keys = stored.leading_shape
    splits = split_count(keys)
    partial = ((rows, heads, splits, dim + 2), mx.float32)
    (out,) = _decode(stored.format)(
        (q, *stored.arrays, scale),
        [(q.shape, q.dtype) if splits == 1 else partial],
        threadgroups_per_grid=(splits, decode_groups(heads, kv_heads, dim), rows),
        threads_per_threadgroup=THREADGROUP,
        template=[*decode_template(heads, kv_heads, dim), ("WHOLE", splits == 1), *stored.template],
    )
    if splits > 1:
        (out,) = _MERGE(
            (out,),
            [(q.shape, q.dtype)],
            threadgroups_per_grid=(rows * heads, 1, 1),
            threads_per_threadgroup=(dim, 1, 1),
            template=[("T", q.dtype), ("D", dim)],
        )
    return out


def split_count(keys: int) -> int:
    """Return the number of splits of `keys` visible keys. Fewer keys never have more splits."""
    return min(MAX_SPLITS, math.ceil(keys / MIN_SPLIT))


def decode_groups(heads: int, kv_heads: int, dim: int) -> int:
    """Return the number of threadgroups for the heads of one sequence and one split of its keys."""
    group = heads // kv_heads
    return kv_heads * math.ceil(group / _rows(group, dim))


def decode_template(heads: int, kv_heads: int, dim: int) -> list[tuple[str, int]]:
    """Return the template arguments of a decode kernel."""
    return [
        ("D", dim),
        ("ROWS", _rows(heads // kv_heads, dim)),
        ("SIMDGROUPS", SIMDGROUPS),
        ("MIN_SPLIT", MIN_SPLIT),
        ("MAX_SPLITS", MAX_SPLITS),
    ]


def _rows(group: int, dim: int) -> int:
    """Return the number of query heads of a threadgroup, for `group` heads of a key head."""
    return min(group, MAX_ROWS, MAX_NUMBERS // dim)
