"""SwiGLU, with one thread for each number.

A thread reads two numbers and writes one. Neighboring threads access neighboring numbers. Threads
share nothing, so the size of a threadgroup does not matter. A number of any dtype needs one
exponential in float32, and is rounded once. There is no threadgroup memory.
"""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops.checks import check_swiglu

from tinyllm_kernels.metal.kernel import Kernel

THREADS = 256

_SWIGLU = Kernel(
    "swiglu",
    ("sigmoid.metal", "swiglu/kernel.metal"),
    ("gate", "up", "count"),
    ("y",),
    "swiglu<T>(gate, up, y, uint(count), thread_position_in_grid.x);",
)


def swiglu(
    gate: Float[mx.array, "*shape"], up: Float[mx.array, "*shape"]
) -> Float[mx.array, "*shape"]:
    """Compute silu(gate) * up; see `tinyllm_ops.swiglu`."""
    check_swiglu(gate, up)
    if gate.size == 0:
        return gate
    (y,) = _SWIGLU(
        (gate.reshape(-1), up.reshape(-1), gate.size),
        [(gate.shape, gate.dtype)],
        threadgroups_per_grid=(-(-gate.size // THREADS), 1, 1),
        threads_per_threadgroup=(THREADS, 1, 1),
        template=[("T", gate.dtype)],
    )
    return y
