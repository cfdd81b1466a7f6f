"""Gated RMSNorm, with one simdgroup for each row.

Rows are heads of 128 numbers, four for each of the 32 lanes. A row of x is read twice, the second
time from the cache. The gate is read once, and the result is written once. Without the fusion, the
norm, the activation and the product would write two more arrays. A threadgroup has four rows, 128
threads, and no threadgroup memory.
"""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops.recurrent_checks import check_gated_rms_norm

from tinyllm_kernels.metal.kernel import SIMD, Kernel

ROWS_PER_GROUP = 4  # one simdgroup for each row

_GATED_RMS_NORM = Kernel(
    "gated_rms_norm",
    ("sigmoid.metal", "gated_rms_norm/kernel.metal"),
    ("x", "gate", "weight", "rows", "dim", "eps"),
    ("y",),
    """
    const uint row = thread_position_in_grid.y;
    if (row >= uint(rows)) {
      return;  // all lanes of the simdgroup return, because they share a row
    }
    const ulong first = ulong(row) * dim;
    gated_rms_norm<T>(x + first, gate + first, weight, y + first, uint(dim), eps,
                      thread_index_in_simdgroup);
    """,
)


def gated_rms_norm(
    x: Float[mx.array, "*batch D"],
    gate: Float[mx.array, "*batch D"],
    weight: Float[mx.array, "D"],
    eps: float = 1e-6,
) -> Float[mx.array, "*batch D"]:
    """Compute rms_norm(x) * weight * silu(gate); see `tinyllm_ops.gated_rms_norm`."""
    check_gated_rms_norm(x, gate, weight, eps)
    if x.size == 0:
        return x
    dim = x.shape[-1]
    rows = x.size // dim
    (y,) = _GATED_RMS_NORM(
        (x, gate, weight, rows, dim, float(eps)),
        [(x.shape, x.dtype)],
        threadgroups_per_grid=(1, -(-rows // ROWS_PER_GROUP), 1),
        threads_per_threadgroup=(SIMD, ROWS_PER_GROUP, 1),
        template=[("T", x.dtype)],
    )
    return y
