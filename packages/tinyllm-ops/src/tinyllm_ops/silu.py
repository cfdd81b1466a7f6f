"""The activation of a Qwen MLP, and the gate that it opens."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.contract import check_swiglu, require_floating


def sigmoid(x: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
    """1 / (1 + exp(-x)), computed in float32 from exp(-abs(x)), which never overflows."""
    require_floating("x", x)
    decay = mx.exp(-mx.abs(x.astype(mx.float32)))
    return (mx.where(x < 0, decay, 1) / (1 + decay)).astype(x.dtype)


def silu(x: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
    """x * sigmoid(x), also called swish (Ramachandran et al. 2017), rounded to x's dtype once."""
    require_floating("x", x)
    wide = x.astype(mx.float32)
    return (wide * sigmoid(wide)).astype(x.dtype)


def swiglu(
    gate: Float[mx.array, "*shape"], up: Float[mx.array, "*shape"]
) -> Float[mx.array, "*shape"]:
    """silu(gate) * up (Shazeer 2020).

    Raises:
        ValueError: if the two differ in shape or dtype.
    """
    check_swiglu(gate, up)
    return silu(gate) * up
