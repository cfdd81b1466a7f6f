"""Arguments of rotary position embedding that the kernels of both backends take."""

import functools

import mlx.core as mx
from jaxtyping import Float32, Int32
from tinyllm_ops import Positions, Yarn
from tinyllm_ops.checks import position_array, slice_start
from tinyllm_ops.rotary_frequencies import rotary_frequencies


def position_rows(positions: Positions, batch: int, length: int) -> Int32[mx.array, "rows L"]:
    """Return positions as `1 L` or `B L`.

    A slice becomes a constant array, which needs no primitive in MLX's graph.
    """
    if isinstance(positions, slice):
        start = slice_start(positions, length)
        return mx.array([list(range(start, start + length))], dtype=mx.int32)
    return position_array(positions, batch, length).astype(mx.int32)


@functools.cache
def frequencies(dim: int, base: float, scaling: Yarn | None) -> Float32[mx.array, "pairs"]:
    """Return the radians per token of each of the D/2 pairs."""
    return mx.array(rotary_frequencies(dim, base, scaling), dtype=mx.float32)


def magnitude(scaling: Yarn | None) -> float:
    """Return the factor by which YaRN multiplies rotated queries and keys; 1 without YaRN."""
    return 1.0 if scaling is None else scaling.magnitude
