"""Gated delta rule, one token after the other, with the state in registers.

The rows of a state are independent, and a token needs the state after the token before it. A
simdgroup therefore keeps four rows of the state of a value head in registers, and computes all
tokens of its sequence. With Dk = 128 a lane has four columns of each row, 16 registers. The keys
and queries of a token are read and normalized once for the four rows, and the reductions of the
four rows do not wait for each other. The state is read once and written once for each saved token.

A model with 16 value heads of 128 rows has 512 simdgroups for each sequence, in threadgroups of
four. They share nothing, and need no barrier and no threadgroup memory. Prompts are computed with
the same parallelism as decode steps: the number of tokens changes only the length of the loop. The
chunked form of the rule would multiply matrices, but its bits depend on the borders of the chunks.
"""

import mlx.core as mx
from jaxtyping import Float, Float32
from tinyllm_ops import StateTable
from tinyllm_ops.recurrent_checks import check_gated_delta

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.saved_rows import saved_rows

ROWS = 4  # rows of the state that a simdgroup keeps
SIMDGROUPS = 4

_GATED_DELTA = Kernel(
    "gated_delta",
    (
        *("attention/rows.metal", "sigmoid.metal", "gated_delta/gates.metal"),
        *("gated_delta/state_rows.metal", "gated_delta/kernel.metal"),
    ),
    (
        *("q", "k", "v", "a", "b", "a_log", "dt_bias", "state"),
        *("cu_seqlens", "loads", "saves"),
    ),
    ("o", "saved"),
    """
    const int sequence = threadgroup_position_in_grid.z, head = threadgroup_position_in_grid.y;
    const int heads = v_shape[1], rows = v_shape[2], key_head = head / (heads / q_shape[1]);
    const int row0 = (threadgroup_position_in_grid.x * SIMDGROUPS +
                      simdgroup_index_in_threadgroup) * ROWS;
    if (row0 >= rows) {
      return;  // all lanes of the simdgroup return, because they share rows
    }
    const int64_t head_size = int64_t(rows) * DK;
    gated_delta<T, DK, ROWS>(
        rows_of_head(q, q_strides, key_head), rows_of_head(k, k_strides, key_head),
        rows_of_head(v, v_strides, head),
        gates_of_head(a, b, a_log[head], float(dt_bias[head]), head, heads),
        StateRows{row0, rows, head * head_size + int64_t(row0) * DK, heads * head_size},
        cu_seqlens[sequence], cu_seqlens[sequence + 1], state, loads[sequence], saves, saved,
        o + head * rows, int64_t(heads) * rows, int(thread_index_in_simdgroup));
    """,
    row_contiguous=False,
)


def gated_delta(
    q: Float[mx.array, "T Hk Dk"],
    k: Float[mx.array, "T Hk Dk"],
    v: Float[mx.array, "T Hv Dv"],
    a: Float[mx.array, "T Hv"],
    b: Float[mx.array, "T Hv"],
    a_log: Float32[mx.array, "Hv"],
    dt_bias: Float[mx.array, "Hv"],
    slots: Float32[mx.array, "P Hv Dv Dk"],
    state_table: StateTable,
) -> tuple[Float[mx.array, "T Hv Dv"], Float32[mx.array, "P Hv Dv Dk"]]:
    """Update the states by the gated delta rule and read them; see `tinyllm_ops.gated_delta`."""
    check_gated_delta(q, k, v, a, b, a_log, dt_bias, slots, state_table)
    if v.size == 0 or q.size == 0:
        return mx.zeros(v.shape, v.dtype), slots
    _, heads, value_dim = v.shape
    sequences = len(state_table.load_slots)
    states, table = saved_rows(state_table), state_table.arrays
    # q, k and v are parts of the same rows, and are read in place. The other arrays are contiguous
    # in a model.
    gates_and_state = (mx.contiguous(x) for x in (a, b, a_log, dt_bias, slots))
    o, saved = _GATED_DELTA(
        (q, k, v, *gates_and_state, table.cu_seqlens, table.load_slots, states.rows),
        [(v.shape, v.dtype), ((max(1, states.num_rows), *slots.shape[1:]), slots.dtype)],
        threadgroups_per_grid=(-(-value_dim // (ROWS * SIMDGROUPS)), heads, sequences),
        threads_per_threadgroup=(SIMD * SIMDGROUPS, 1, 1),
        template=[
            *(("T", v.dtype), ("DK", q.shape[-1])),
            *(("ROWS", ROWS), ("SIMDGROUPS", SIMDGROUPS)),
        ],
        init_value=0.0 if states.num_rows == 0 else None,
    )
    return o, states.store(slots, saved)
