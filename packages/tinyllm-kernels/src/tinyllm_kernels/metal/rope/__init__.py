"""Rotary positions, one head of one token for a simdgroup; with the norm of the head before them.

A head of 128 is 64 pairs, two for each lane: read once, turned, written once. The norm of a head
needs no more than a `simd_sum`, so that Qwen3's q and k are normalized, turned and brought to the
order that attention reads in one pass instead of three. Each head computes its angles anew: two
sines for a lane cost less than a table in memory. No threadgroup memory; four heads make a group of
128 threads.
"""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Norm, Positions, Rotary, Yarn
from tinyllm_ops.contract import check_rms_norm, check_rope

from tinyllm_kernels.arguments import frequencies, magnitude
from tinyllm_kernels.arguments import positions as written_out
from tinyllm_kernels.metal.kernel import SIMD, Kernel

HEADS = 4  # of a threadgroup

# Which head this is, and where it goes.
_HEAD = """
    const uint head = thread_position_in_grid.y;
    if (head >= uint(count)) {
      return;  // all lanes of a simdgroup, since they have one head
    }
    const uint token = head / heads, row = token / length;
    const uint at = token % position_count;  // one row of positions for all, or one for each
    const uint place = heads_first ? (row * heads + head % heads) * length + token % length : head;
    const uint lane = thread_index_in_simdgroup;
"""
_SIZES = ("position_count", "count", "heads", "length", "heads_first", "dim", "magnitude")
_ROPE = Kernel(
    "rope",
    ("simdgroups.metal", "rope/rope.metal"),
    ("x", "positions", "frequencies", *_SIZES),
    ("y",),
    _HEAD
    + """
    rope<T, TRADITIONAL>(x + head * dim, frequencies, y + place * dim, uint(dim), positions[at],
                         magnitude, lane, Plain());
    """,
)
_NORM_ROPE = Kernel(
    "norm_rope",
    ("simdgroups.metal", "rope/rope.metal"),
    ("x", "positions", "frequencies", *_SIZES, "weight", "eps"),
    ("y",),
    _HEAD
    + """
    rope<T, TRADITIONAL>(x + head * dim, frequencies, y + place * dim, uint(dim), positions[at],
                         magnitude, lane,
                         normalized<T>(x + head * dim, weight, uint(dim), eps, lane));
    """,
)


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
) -> Float[mx.array, "B L H D"]:
    """Turn each pair of features by its token's position; see `tinyllm_ops.rope`."""
    return _turned(x, positions, Rotary(base, traditional, scaling), None, heads_first=False)


def head_inputs(
    x: Float[mx.array, "B L H D"], positions: Positions, rotary: Rotary, norm: Norm | None
) -> Float[mx.array, "B H L D"]:
    """Heads as attention reads them: normalized if there is a norm, turned, heads before tokens."""
    if norm is not None:
        check_rms_norm(x, norm.weight, norm.eps)
    return _turned(x, positions, rotary, norm, heads_first=True)


def _turned(
    x: mx.array, positions: Positions, rotary: Rotary, norm: Norm | None, *, heads_first: bool
) -> mx.array:
    check_rope(x, rotary.base)
    batch, length, heads, dim = x.shape
    where = written_out(positions, batch, length)
    shape = (batch, heads, length, dim) if heads_first else x.shape
    if x.size == 0:
        return x.reshape(shape)
    inputs: list[mx.array | int | float] = [
        x,
        where,
        frequencies(dim, rotary.base, rotary.scaling),
        where.size,
        batch * length * heads,
        heads,
        length,
        int(heads_first),
        dim,
        magnitude(rotary.scaling),
    ]
    kernel = _ROPE
    if norm is not None:
        kernel = _NORM_ROPE
        inputs += [norm.weight, float(norm.eps)]
    (y,) = kernel(
        inputs,
        [(shape, x.dtype)],
        groups=(1, -(-batch * length * heads // HEADS), 1),
        group=(SIMD, HEADS, 1),
        template=[("T", x.dtype), ("TRADITIONAL", rotary.traditional)],
    )
    return y
