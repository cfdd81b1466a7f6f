"""One token of each request: an online softmax over parts of the keys.

A token is limited by the bytes of keys and values, 4 S D Hkv in 16 bits. A threadgroup is 4
simdgroups; each takes every fourth key, a lane D/32 columns of it. Up to ROWS = 8 heads at a time:
each keeps D/32 numbers of q and as many sums, 64 floats a thread at D = 128, beside 16 for the
state of the softmax and 8 for a key and its value. Threadgroup memory is D floats for each
simdgroup and 2 numbers a row: 2.3 KB.

Hkv groups would leave a GPU idle, so the keys are cut into parts, each a threadgroup. A part has at
least 256 keys: what it writes, D + 2 floats a row, is then 3% of what it reads, with 8 rows at
D = 128 in 16 bits (6% of 8-bit codes, 11% of 4-bit ones). There are at most 16 parts, which then
grow: 128 groups of a model with 8 key heads. Its size depends on S alone, so that a request gives
the same bits in any batch. A second kernel adds the parts up, one thread a column.

Of packed keys neighboring lanes share a word, 32 / BITS codes, and a scale and bias: one access for
all of them. Decoding is a shift, a mask, a multiplication and an addition for each number, which
serves all heads of the group.
"""

from __future__ import annotations

import functools
import math

import mlx.core as mx
from jaxtyping import Float

from tinyllm_kernels.metal.attention.stored_keys import KeyFormat, StoredKeys
from tinyllm_kernels.metal.kernel import SIMD, Kernel

SIMDGROUPS = 4  # of a threadgroup
GROUP = (SIMD * SIMDGROUPS, 1, 1)
MAX_ROWS = 8  # heads that decode together
MIN_PART = 256  # keys
MAX_PARTS = 16

READ = (
    "codes.metal",
    "attention/rows.metal",
    "attention/packed_rows.metal",
    "attention/head_group.metal",
)
ATTEND_PART = ("attention/parts.metal", "attention/decode.metal")

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


@functools.cache
def _decode(keys: KeyFormat) -> Kernel:
    """A kernel for each format."""
    place = """
    threadgroup float sums[SIMDGROUPS * D], tops[SIMDGROUPS * ROWS], totals[SIMDGROUPS * ROWS];
    const uint3 at = threadgroup_position_in_grid;
    const HeadGroup of = head_group_to_decode<ROWS>(at, q_shape, k_shape);
    const HeadInBatch place = {of.batch, of.kv_head};
    """
    attend = """
    attend_part<D, ROWS, SIMDGROUPS>(
        queries_of(q, q_strides, of), keys, values, scale, of.row0, of.group,
        part_of<MIN_PART, MAX_PARTS>({0, k_shape[2]}, at.x),
        part_results_of<D, WHOLE>(out, of.first_head(q_shape[1]), at.x, threadgroups_per_grid.x),
        sums, tops, totals, thread_index_in_threadgroup);
    """
    return Kernel(
        f"attention_decode{keys.name}",
        files=(*READ, "attention/dense.metal", *ATTEND_PART),
        inputs=("q", *keys.inputs, "scale"),
        outputs=("out",),
        body=place + keys.body + attend,
        row_contiguous=False,
    )


def decode(q: Float[mx.array, "B H 1 D"], stored: StoredKeys, scale: float) -> mx.array:
    """One query for each head, which sees all keys."""
    rows, heads, _, dim = q.shape
    _, kv_heads, keys = stored.lead
    parts = parts_at_most(keys)
    partial = ((rows, heads, parts, dim + 2), mx.float32)
    (out,) = _decode(stored.format)(
        (q, *stored.arrays, scale),
        [(q.shape, q.dtype) if parts == 1 else partial],
        groups=(parts, decode_groups(heads, kv_heads), rows),
        group=GROUP,
        template=[*decode_template(heads, kv_heads, dim), ("WHOLE", parts == 1), *stored.template],
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
