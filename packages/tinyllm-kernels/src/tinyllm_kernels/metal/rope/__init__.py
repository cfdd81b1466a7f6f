"""Rotary position embedding (RoPE), with or without the RMSNorm of each head before it.

`rope` rotates queries or keys. `norm_rope` normalizes each head, rotates it and moves the heads
before the tokens, in one kernel instead of three: Qwen3 needs all three steps.

A simdgroup computes one head of one token. A head of 128 features has 64 pairs, two for each of the
32 lanes. The head is read once and written once. The norm adds one `simd_sum`. With `dims` only the
first features of a head are rotated, and the others are only normalized.

Each head computes its sines and cosines itself, because that costs less than reading a table. A
threadgroup has four heads, 128 threads, and no threadgroup memory.
"""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Positions, Yarn
from tinyllm_ops.checks import check_rms_norm, check_rope

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.rope_arguments import frequencies, magnitude, position_rows

HEADS_PER_GROUP = 4  # one simdgroup for each head

_FILES = ("simdgroups.metal", "rope/kernel.metal")
_INPUTS = (
    *("x", "positions", "frequencies", "position_count", "head_count", "heads", "length"),
    *("heads_first", "dim", "rotated_dim", "magnitude"),
)
# x has `head_count` heads in the order `B L H`. `head` is the index of this simdgroup's head in x,
# and `y_head` its index in y, whose order is `B H L` if `heads_first`.
_DECLARE_INDICES = """
    const uint head = thread_position_in_grid.y;
    if (head >= uint(head_count)) {
      return;  // all lanes of the simdgroup return, because they share a head
    }
    const uint token = head / heads, sequence = token / length;
    const uint position = token % position_count;  // positions are `1 L` or `B L`
    const uint y_head =
        heads_first ? (sequence * heads + head % heads) * length + token % length : head;
    const uint lane = thread_index_in_simdgroup;
"""
_ROPE = Kernel(
    "rope",
    _FILES,
    _INPUTS,
    ("y",),
    _DECLARE_INDICES
    + """
    rope<T, TRADITIONAL>(x + head * dim, frequencies, y + y_head * dim, uint(dim),
                         uint(rotated_dim), positions[position], magnitude, lane, Identity());
    """,
)
_NORM_ROPE = Kernel(
    "norm_rope",
    _FILES,
    (*_INPUTS, "weight", "eps"),
    ("y",),
    _DECLARE_INDICES
    + """
    rope<T, TRADITIONAL>(x + head * dim, frequencies, y + y_head * dim, uint(dim),
                         uint(rotated_dim), positions[position], magnitude, lane,
                         head_norm_of<T>(x + head * dim, weight, uint(dim), eps, lane));
    """,
)


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> Float[mx.array, "B L H D"]:
    """Rotate each pair of features by the position of its token; see `tinyllm_ops.rope`."""
    return _rotate(x, positions, base, traditional, scaling, dims, norm=(), heads_first=False)


def norm_rope(
    x: Float[mx.array, "B L H D"],
    weight: Float[mx.array, "D"] | None,
    eps: float,
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> Float[mx.array, "B H L D"]:
    """Normalize and rotate each head, and move heads before tokens; see `tinyllm_ops.norm_rope`.

    Without a weight, heads are not normalized.
    """
    norm: tuple[mx.array | float, ...] = ()
    if weight is not None:
        check_rms_norm(x, weight, eps)
        norm = (weight, float(eps))
    return _rotate(x, positions, base, traditional, scaling, dims, norm=norm, heads_first=True)


def _rotate(
    x: Float[mx.array, "B L H D"],
    positions: Positions,
    base: float,
    traditional: bool,
    scaling: Yarn | None,
    dims: int | None,
    *,
    norm: tuple[mx.array | float, ...],
    heads_first: bool,
) -> mx.array:
    """Run `_NORM_ROPE` if `norm` is not empty, otherwise `_ROPE`.

    Args:
        x: queries or keys.
        positions: position of each token.
        base: base of the frequencies.
        traditional: True to rotate pairs of neighboring features.
        scaling: YaRN scaling of frequencies and magnitude, if any.
        dims: number of features of a head to rotate, or None for all.
        norm: weight and eps of the norm, or an empty tuple.
        heads_first: True for a result `B H L D`, False for `B L H D`.
    """
    check_rope(x, base, dims)
    batch, length, heads, dim = x.shape
    shape = (batch, heads, length, dim) if heads_first else x.shape
    token_positions = position_rows(positions, batch, length)
    if x.size == 0:
        return x.reshape(shape)
    head_count = batch * length * heads
    rotated_dim = dim if dims is None else dims
    sizes = (token_positions.size, head_count, heads, length, int(heads_first), dim, rotated_dim)
    kernel = _NORM_ROPE if norm else _ROPE
    (y,) = kernel(
        (
            *(x, token_positions, frequencies(rotated_dim, base, scaling)),
            *(*sizes, magnitude(scaling), *norm),
        ),
        [(shape, x.dtype)],
        threadgroups_per_grid=(1, -(-head_count // HEADS_PER_GROUP), 1),
        threads_per_threadgroup=(SIMD, HEADS_PER_GROUP, 1),
        template=[("T", x.dtype), ("TRADITIONAL", traditional)],
    )
    return y
