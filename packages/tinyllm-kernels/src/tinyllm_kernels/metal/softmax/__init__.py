"""Softmax, with one threadgroup for each row.

A row is read three times, twice from the cache. The exponentials are computed twice instead of
being stored, so that a row of any length needs only 256 bytes of threadgroup memory for two
reductions. A thread computes four numbers. For a row of 4,096 numbers a threadgroup has 1,024
threads, the maximum. In longer rows a thread computes more numbers. An axis other than the last one
is moved to the end, which copies x.
"""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops.checks import check_softmax

from tinyllm_kernels.metal.kernel import MAX_THREADS, SIMD, Kernel

PER_THREAD = 4  # numbers

_SOFTMAX = Kernel(
    "softmax",
    ("simdgroups.metal", "softmax/kernel.metal"),
    ("x", "dim"),
    ("y",),
    """
    threadgroup float maxima[32], sums[32];
    softmax<T>(x, y, uint(dim), threadgroup_position_in_grid.x, thread_index_in_simdgroup,
               simdgroup_index_in_threadgroup, simdgroups_per_threadgroup, maxima, sums);
    """,
)


def softmax(x: Float[mx.array, "*shape"], axis: int = -1) -> Float[mx.array, "*shape"]:
    """Compute exp(x - max x) / sum exp(x - max x) along an axis; see `tinyllm_ops.softmax`."""
    check_softmax(x, axis)
    if x.size == 0:
        return x
    if axis % x.ndim != x.ndim - 1:
        return softmax(x.swapaxes(axis, -1)).swapaxes(axis, -1)
    dim = x.shape[-1]
    simdgroups = min(-(-dim // (SIMD * PER_THREAD)), MAX_THREADS // SIMD)
    (y,) = _SOFTMAX(
        (x, dim),
        [(x.shape, x.dtype)],
        threadgroups_per_grid=(x.size // dim, 1, 1),
        threads_per_threadgroup=(SIMD * simdgroups, 1, 1),
        template=[("T", x.dtype)],
    )
    return y
