"""Rotary position embedding, optionally with the RMSNorm of each head before it.

A simdgroup rotates one head of one token. A head of 128 is 64 pairs, two for each lane: it is read
once, rotated and written once. The norm of a head adds a `simd_sum`. `norm_rope` therefore
normalizes, rotates and transposes the queries or keys of Qwen3 in one pass instead of three.

Each head computes its angles anew: two sines a lane cost less than reading a table. No threadgroup
memory. Four heads make a threadgroup of 128 threads.
"""

from __future__ import annotations

import functools

import mlx.core as mx
from jaxtyping import Float, Float32, Int32
from tinyllm_ops import Positions, Yarn
from tinyllm_ops.checks import check_rms_norm, check_rope
from tinyllm_ops.reference.rope import position_array, slice_start
from tinyllm_ops.rotary_frequencies import rotary_frequencies

from tinyllm_kernels.metal.kernel import SIMD, Kernel

HEADS = 4  # heads of a threadgroup, one for each simdgroup

_FILES = ("simdgroups.metal", "rope/kernel.metal")
_INPUTS = (
    *("x", "positions", "frequencies", "position_count", "count", "heads", "length"),
    *("heads_first", "dim", "magnitude"),
)
# `head` counts the heads of x, `B L H D`. `place` is its index in y, which may be `B H L D`.
_INDICES = """
    const uint head = thread_position_in_grid.y;
    if (head >= uint(count)) {
      return;  // the whole simdgroup, since its lanes share one head
    }
    const uint token = head / heads, row = token / length;
    const uint at = token % position_count;  // positions are `1 L` or `B L`
    const uint place = heads_first ? (row * heads + head % heads) * length + token % length : head;
    const uint lane = thread_index_in_simdgroup;
"""
_ROPE = Kernel(
    "rope",
    _FILES,
    _INPUTS,
    ("y",),
    _INDICES
    + """
    rope<T, TRADITIONAL>(x + head * dim, frequencies, y + place * dim, uint(dim), positions[at],
                         magnitude, lane, Identity());
    """,
)
_NORM_ROPE = Kernel(
    "norm_rope",
    _FILES,
    (*_INPUTS, "weight", "eps"),
    ("y",),
    _INDICES
    + """
    rope<T, TRADITIONAL>(x + head * dim, frequencies, y + place * dim, uint(dim), positions[at],
                         magnitude, lane,
                         rms_norm_of<T>(x + head * dim, weight, uint(dim), eps, lane));
    """,
)


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
) -> Float[mx.array, "B L H D"]:
    """Rotate each pair of features by its token's position; see `tinyllm_ops.rope`."""
    return _rotate(x, positions, base, traditional, scaling, norm=(), heads_first=False)


def norm_rope(
    x: Float[mx.array, "B L H D"],
    weight: Float[mx.array, "D"] | None,
    eps: float,
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
) -> Float[mx.array, "B H L D"]:
    """Normalize, rotate and transpose each head in one kernel; see `tinyllm_ops.norm_rope`."""
    norm: tuple[mx.array | float, ...] = ()
    if weight is not None:
        check_rms_norm(x, weight, eps)
        norm = (weight, float(eps))
    return _rotate(x, positions, base, traditional, scaling, norm=norm, heads_first=True)


def _rotate(
    x: Float[mx.array, "B L H D"],
    positions: Positions,
    base: float,
    traditional: bool,
    scaling: Yarn | None,
    *,
    norm: tuple[mx.array | float, ...],
    heads_first: bool,
) -> mx.array:
    """Run `_ROPE`, or `_NORM_ROPE` if there is a norm.

    Args:
        x: queries or keys.
        positions: as in `rope`.
        base: as in `rope`.
        traditional: as in `rope`.
        scaling: as in `rope`.
        norm: weight and eps of the norm, or nothing.
        heads_first: True for a result `B H L D`, False for `B L H D`.
    """
    check_rope(x, base)
    batch, length, heads, dim = x.shape
    shape = (batch, heads, length, dim) if heads_first else x.shape
    rows = _position_rows(positions, batch, length)
    if x.size == 0:
        return x.reshape(shape)
    count = batch * length * heads
    magnitude = 1.0 if scaling is None else scaling.magnitude
    sizes = (rows.size, count, heads, length, int(heads_first), dim, magnitude)
    kernel = _NORM_ROPE if norm else _ROPE
    (y,) = kernel(
        (x, rows, _frequencies(dim, base, scaling), *sizes, *norm),
        [(shape, x.dtype)],
        groups=(1, -(-count // HEADS), 1),
        group=(SIMD, HEADS, 1),
        template=[("T", x.dtype), ("TRADITIONAL", traditional)],
    )
    return y


def _position_rows(positions: Positions, batch: int, length: int) -> Int32[mx.array, "rows L"]:
    """Positions as int32, `1 L` or `B L`. A slice becomes a constant, which saves a launch."""
    if isinstance(positions, slice):
        start = slice_start(positions, length)
        return mx.array([list(range(start, start + length))], dtype=mx.int32)
    return position_array(positions, batch, length).astype(mx.int32)


@functools.cache
def _frequencies(dim: int, base: float, scaling: Yarn | None) -> Float32[mx.array, " {dim}//2"]:
    """Return the angle of each pair at position 1, in radians."""
    return mx.array(rotary_frequencies(dim, base, scaling), dtype=mx.float32)
