"""Causal convolution with SiLU, with one thread for each channel of each token.

Neighboring threads compute neighboring channels, so that they access neighboring numbers. A thread
reads K numbers of x, which the threads of the K - 1 tokens before it read as well, from the cache.
Threads share nothing. The state is only read at the beginning of a chunk, and only the threads of
saved tokens write it.

A thread for each channel that goes from token to token would read each number once, but 6,144
channels are too few threads for a GPU, and each of them would wait for its numbers T times.
"""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import StateTable
from tinyllm_ops.recurrent_checks import check_causal_conv

from tinyllm_kernels.metal.kernel import Kernel
from tinyllm_kernels.metal.saved_rows import saved_rows

THREADS = 256

_CAUSAL_CONV = Kernel(
    "causal_conv",
    ("sigmoid.metal", "causal_conv/kernel.metal"),
    ("x", "weight", "state", "starts", "loads", "rows", "channels"),
    ("y", "saved"),
    """
    const uint3 at = thread_position_in_grid;
    causal_conv<T, K>(x, weight, state, y, saved, channels, int(at.y), int(at.x), starts[at.y],
                      loads[at.y], rows[at.y]);
    """,
)


def causal_conv(
    x: Float[mx.array, "T C"],
    weight: Float[mx.array, "C K"],
    slots: Float[mx.array, "P K-1 C"],
    state_table: StateTable,
) -> tuple[Float[mx.array, "T C"], Float[mx.array, "P K-1 C"]]:
    """Convolve the tokens of each sequence; see `tinyllm_ops.causal_conv`."""
    check_causal_conv(x, weight, slots, state_table)
    if x.size == 0:
        return x, slots
    tokens, channels = x.shape
    states = saved_rows(state_table)
    y, saved = _CAUSAL_CONV(
        (x, weight, slots, states.starts, states.loads, states.rows, channels),
        [(x.shape, x.dtype), ((max(1, states.num_rows), *slots.shape[1:]), slots.dtype)],
        threadgroups_per_grid=(-(-channels // THREADS), tokens, 1),
        threads_per_threadgroup=(THREADS, 1, 1),
        template=[("T", x.dtype), ("K", weight.shape[1])],
        init_value=0.0 if states.num_rows == 0 else None,
    )
    return y, states.store(slots, saved)
