"""Scaled dot-product attention (Vaswani et al. 2017)."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float

from tinyllm_ops.causal_mask import causal_mask
from tinyllm_ops.contract import Weight, check_attention, check_simple_attention
from tinyllm_ops.quantization import dequantize
from tinyllm_ops.quantized_tensor import QuantizedTensor
from tinyllm_ops.softmax import softmax


def scaled_dot_product_attention_simple(
    q: Float[mx.array, "*batch L D"],
    k: Float[mx.array, "*batch S D"],
    v: Float[mx.array, "*batch S D"],
    scale: float | None = None,
    mask: Float[mx.array, "..."] | None = None,
) -> Float[mx.array, "*batch L D"]:
    """softmax(q k^T * scale + mask) v, one key for each query head.

    Args:
        q: what each token asks.
        k: what each token offers.
        v: what each token gives.
        scale: 1/sqrt(D) unless given.
        mask: added to the scores, broadcast to `*batch L S`.

    Raises:
        ValueError: if shapes do not fit.
    """
    check_simple_attention(q, k, v, mask)
    return _attend(q, k, v, scale, mask).astype(q.dtype)


def scaled_dot_product_attention_grouped(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Float[mx.array, "..."] | str | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """Attention in which H/Hkv neighboring query heads share a key/value head (Ainslie 2023).

    The sharing is a broadcast over a new axis: k and v are never repeated. Scores and softmax are
    float32.

    Args:
        q: queries.
        k: keys, `*batch Hkv S D`, dense or quantized; S and L may differ.
        v: values, like k.
        scale: 1/sqrt(D) unless given.
        mask: "causal", or what to add to the scores, broadcast to `*batch H L S`.

    Raises:
        ValueError: if shapes do not fit or H is no multiple of Hkv.
    """
    check_attention(q, k, v, mask)
    *batch, heads, length, dim = q.shape
    kv_heads, keys = k.shape[-3:-1]
    grouped = (*batch, kv_heads, heads // kv_heads, length)
    if isinstance(mask, str):
        mask = causal_mask(length, keys)
    elif mask is not None:
        mask = mx.broadcast_to(mask, (*batch, heads, length, keys)).reshape(*grouped, keys)

    def shared(x: Weight) -> mx.array:
        dense = dequantize(x) if isinstance(x, QuantizedTensor) else x
        return dense[..., None, :, :]  # *batch Hkv 1 S D

    out = _attend(q.reshape(*grouped, dim), shared(k), shared(v), scale, mask)
    return out.reshape(q.shape).astype(q.dtype)


def _attend(
    q: mx.array, k: mx.array, v: mx.array, scale: float | None, mask: mx.array | None
) -> mx.array:
    """The formula, in float32, with leading axes that broadcast."""
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q * scale @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = scores + mask
    return softmax(scores, axis=-1) @ v
