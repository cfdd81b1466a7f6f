"""Norm, activation and rotation, which compute each row on its own."""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Positions, Yarn
from tinyllm_ops.checks import check_rms_norm, check_rope, check_swiglu

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.rope_arguments import frequencies, magnitude, position_rows


def swiglu(
    gate: Float[mx.array, "*shape"], up: Float[mx.array, "*shape"]
) -> Float[mx.array, "*shape"]:
    """silu(gate) * up in one pass."""
    check_swiglu(gate, up)
    return native.swiglu(gate, up)


def rms_norm(
    x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
) -> Float[mx.array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * weight, in two passes over a row; the second reads the cache."""
    check_rms_norm(x, weight, eps)
    return native.rms_norm(x, weight, eps)


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> Float[mx.array, "B L H D"]:
    """Rotate heads to their positions. The angles of a token are computed once for its heads."""
    check_rope(x, base, dims)
    batch, length, _, dim = x.shape
    rows = position_rows(positions, batch, length)
    angles = frequencies(dim if dims is None else dims, base, scaling)
    return native.rope(x, rows, angles, traditional, magnitude(scaling))
