"""RMSNorm, with one threadgroup for each row.

A row is read twice, the second time from the cache, and written once. This memory traffic of 2 D
numbers limits the speed. A thread computes four numbers, and neighboring threads access neighboring
numbers. For a row of 4,096 numbers a threadgroup has 1,024 threads, the maximum. In longer rows a
thread computes more numbers. A head of 128 numbers needs one simdgroup. Threadgroup memory has 128
bytes.
"""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops.checks import check_rms_norm

from tinyllm_kernels.metal.kernel import MAX_THREADS, SIMD, Kernel

PER_THREAD = 4  # numbers

_RMS_NORM = Kernel(
    "rms_norm",
    ("simdgroups.metal", "rms_norm/kernel.metal"),
    ("x", "weight", "dim", "eps"),
    ("y",),
    """
    threadgroup float partial[32];
    rms_norm<T>(x, weight, y, uint(dim), eps, threadgroup_position_in_grid.x,
                thread_index_in_simdgroup, simdgroup_index_in_threadgroup,
                simdgroups_per_threadgroup, partial);
    """,
)


def rms_norm(
    x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
) -> Float[mx.array, "*batch D"]:
    """Compute x / sqrt(mean(x^2) + eps) * weight; see `tinyllm_ops.rms_norm`."""
    check_rms_norm(x, weight, eps)
    if x.size == 0:
        return x
    dim = x.shape[-1]
    simdgroups = min(-(-dim // (SIMD * PER_THREAD)), MAX_THREADS // SIMD)
    (y,) = _RMS_NORM(
        (x, weight, dim, float(eps)),
        [(x.shape, x.dtype)],
        threadgroups_per_grid=(x.size // dim, 1, 1),
        threads_per_threadgroup=(SIMD * simdgroups, 1, 1),
        template=[("T", x.dtype)],
    )
    return y
