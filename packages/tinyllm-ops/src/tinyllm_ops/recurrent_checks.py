"""Checks of the arguments of the ops of gated DeltaNet. See `tinyllm_ops.checks`."""

import mlx.core as mx

from tinyllm_ops.checks import (
    check_rms_norm,
    require_dtype,
    require_features,
    require_floating,
    require_rank,
    require_shape,
)
from tinyllm_ops.state_table import StateTable


def check_causal_conv(
    x: mx.array, weight: mx.array, slots: mx.array, state_table: StateTable
) -> None:
    """Require x `T C`, weight `C K` and slots `P K-1 C` of one dtype.

    T and P must equal the number of tokens and the number of slots of the state table.
    """
    require_floating("x", x)
    require_rank("x", x, "T C")
    require_rank("weight", weight, "C K")
    tokens, channels = x.shape
    kernel = weight.shape[1]
    require_shape("weight", weight, (channels, kernel))
    if kernel < 2:
        raise ValueError(f"weight: expected at least 2 weights per channel, got {kernel}")
    require_shape("slots", slots, (state_table.num_slots, kernel - 1, channels))
    require_dtype("weight", weight, x.dtype)
    require_dtype("slots", slots, x.dtype)
    _require_tokens("x", tokens, state_table)


def check_gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    a_log: mx.array,
    dt_bias: mx.array,
    slots: mx.array,
    state_table: StateTable,
) -> None:
    """Require q and k `T Hk Dk`, v `T Hv Dv`, a and b `T Hv`, and slots `P Hv Dv Dk` in float32.

    q, k, v, a and b have one dtype, a_log `Hv` is float32, and dt_bias `Hv` is floating. Hv must be
    a multiple of Hk. T and P must equal the tokens and the slots of the state table.
    """
    require_floating("q", q)
    require_rank("q", q, "T Hk Dk")
    require_rank("v", v, "T Hv Dv")
    require_features("q", q)
    tokens, key_heads, key_dim = q.shape
    value_heads, value_dim = v.shape[1:]
    for name, x, shape in (
        ("k", k, q.shape),
        ("v", v, (tokens, value_heads, value_dim)),
        ("a", a, (tokens, value_heads)),
        ("b", b, (tokens, value_heads)),
    ):
        require_shape(name, x, shape)
        require_dtype(name, x, q.dtype)
    if key_heads == 0 or value_heads % key_heads:
        raise ValueError(
            f"v: expected a multiple of {key_heads} key heads, got {value_heads} value heads"
        )
    require_shape("a_log", a_log, (value_heads,))
    require_dtype("a_log", a_log, mx.float32)
    require_shape("dt_bias", dt_bias, (value_heads,))
    require_floating("dt_bias", dt_bias)
    require_shape("slots", slots, (state_table.num_slots, value_heads, value_dim, key_dim))
    require_dtype("slots", slots, mx.float32)
    _require_tokens("q", tokens, state_table)


def check_gated_rms_norm(x: mx.array, gate: mx.array, weight: mx.array, eps: float) -> None:
    """Require x and gate `*batch D`, weight `D`, one dtype, and an eps that is not negative."""
    check_rms_norm(x, weight, eps)
    require_shape("gate", gate, x.shape)
    require_dtype("gate", gate, x.dtype)


def _require_tokens(name: str, tokens: int, state_table: StateTable) -> None:
    """Raise ValueError unless `tokens` is the number of tokens of the state table."""
    if tokens != state_table.count:
        raise ValueError(
            f"{name}: expected {state_table.count} tokens, as the table has, got {tokens}"
        )
