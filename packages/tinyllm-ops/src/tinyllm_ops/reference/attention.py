"""Scaled dot-product attention (Vaswani et al. 2017)."""

import mlx.core as mx
from jaxtyping import Bool, Float

from tinyllm_ops.checks import check_attention, check_simple_attention
from tinyllm_ops.opset import Mask
from tinyllm_ops.phase import Phase
from tinyllm_ops.quantization.tensor import QuantizedTensor, Weight, dequantize
from tinyllm_ops.reference.rowwise import softmax


def causal_mask(L: int, S: int, dtype: mx.Dtype = mx.float32) -> Float[mx.array, "{L} {S}"]:
    """Return the additive mask of L queries over S keys: 0 if a key is visible, -inf if not.

    Query i sees key j if j <= i + (S - L). The last query sees every key, because the L queries
    are the last L of the S tokens.

    Raises:
        ValueError: if a length is negative.
    """
    if L < 0 or S < 0:
        raise ValueError(f"L, S: expected lengths not below 0, got {L}, {S}")
    visible = mx.arange(S) <= mx.arange(L)[:, None] + (S - L)
    return mx.where(visible, 0, -mx.inf).astype(dtype)


def additive_mask(mask: Float[mx.array, "..."] | Bool[mx.array, "..."]) -> Float[mx.array, "..."]:
    """Turn a boolean mask, True where a key is visible, into an additive mask.

    An additive mask is returned unchanged.
    """
    return mx.where(mask, 0.0, -mx.inf) if mask.dtype == mx.bool_ else mask


def scaled_dot_product_attention_simple(
    q: Float[mx.array, "*batch L D"],
    k: Float[mx.array, "*batch S D"],
    v: Float[mx.array, "*batch S D"],
    scale: float | None = None,
    mask: Float[mx.array, "..."] | Bool[mx.array, "..."] | None = None,
) -> Float[mx.array, "*batch L D"]:
    """softmax(q k^T * scale + mask) v, with one key/value head for each query head.

    Args:
        q: queries.
        k: keys.
        v: values.
        scale: 1/sqrt(D) unless given.
        mask: added to the scores, or True where a key is visible; broadcast to `*batch L S`.

    Raises:
        ValueError: if shapes do not fit.
    """
    check_simple_attention(q, k, v, mask)
    mask = None if mask is None else additive_mask(mask)
    return _attend(q, k, v, scale, mask).astype(q.dtype)


def scaled_dot_product_attention_grouped(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Mask = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """softmax(q k^T * scale + mask) v, H/Hkv query heads per key/value head (Ainslie 2023).

    Query heads h * H/Hkv to (h + 1) * H/Hkv - 1 read key/value head h. k and v are broadcast over a
    new axis and never repeated. Scores and softmax are float32.

    Args:
        q: queries.
        k: keys, `*batch Hkv S D`, dense or quantized. S and L may differ.
        v: values, `*batch Hkv S D`, dense or quantized.
        scale: 1/sqrt(D) unless given.
        mask: "causal", an array that is added to the scores, or a boolean array that is True where
            a key is visible. Arrays are broadcast to `*batch H L S`.
        phase: as in `linear`.

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
        whole = mx.broadcast_to(additive_mask(mask), (*batch, heads, length, keys))
        mask = whole.reshape(*grouped, keys)
    k, v = (
        (dequantize(x) if isinstance(x, QuantizedTensor) else x)[..., None, :, :] for x in (k, v)
    )  # *batch Hkv 1 S D
    out = _attend(q.reshape(*grouped, dim), k, v, scale, mask)
    return out.reshape(q.shape).astype(q.dtype)


def _attend(
    q: mx.array, k: mx.array, v: mx.array, scale: float | None, mask: mx.array | None
) -> mx.array:
    """Compute softmax(q k^T * scale + mask) v in float32; leading axes broadcast."""
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q * scale @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = scores + mask
    return softmax(scores, axis=-1) @ v
