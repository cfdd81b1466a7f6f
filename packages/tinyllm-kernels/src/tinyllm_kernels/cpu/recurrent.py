"""The ops of gated DeltaNet: a short convolution, the gated delta rule, and a gated norm."""

from typing import TYPE_CHECKING

import mlx.core as mx
from jaxtyping import Float, Float32
from tinyllm_ops import MLX, StateTable
from tinyllm_ops.recurrent_checks import check_causal_conv, check_gated_delta, check_gated_rms_norm

from tinyllm_kernels import _cpu as native

if TYPE_CHECKING:
    from tinyllm_kernels._cpu import StateTableArrays

MAX_CONV_WIDTH = 16
"""The most weights per channel of a convolution that the extension computes."""


def causal_conv(
    x: Float[mx.array, "T C"],
    weight: Float[mx.array, "C K"],
    slots: Float[mx.array, "P K-1 C"],
    state_table: StateTable,
) -> tuple[Float[mx.array, "T C"], Float[mx.array, "P K-1 C"]]:
    """silu of a convolution along each sequence. States are written in place."""
    check_causal_conv(x, weight, slots, state_table)
    if x.size == 0 or weight.shape[1] > MAX_CONV_WIDTH:
        return MLX.causal_conv(x, weight, slots, state_table)
    y, slots = native.causal_conv(x, weight, slots, state_table_arrays(state_table))
    return y, slots


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
    """The gated delta rule, token by token, with rows of S in registers. S is written in place."""
    check_gated_delta(q, k, v, a, b, a_log, dt_bias, slots, state_table)
    if q.size == 0 or v.size == 0:
        return MLX.gated_delta(q, k, v, a, b, a_log, dt_bias, slots, state_table)
    table = state_table_arrays(state_table)
    o, slots = native.gated_delta(q, k, v, a, b, a_log, dt_bias, slots, table)
    return o, slots


def gated_rms_norm(
    x: Float[mx.array, "*batch D"],
    gate: Float[mx.array, "*batch D"],
    weight: Float[mx.array, "D"],
    eps: float = 1e-6,
) -> Float[mx.array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * weight * silu(gate), in two passes over a row."""
    check_gated_rms_norm(x, gate, weight, eps)
    return native.gated_rms_norm(x, gate, weight, eps)


def state_table_arrays(state_table: StateTable) -> "StateTableArrays":
    """Convert a state table to the tuple of the extension."""
    arrays = state_table.arrays
    return arrays.cu_seqlens, arrays.load_slots, arrays.save_slots
