"""Attention over keys that a cache has in one piece: one token, or many.

softmax(q k^T * scale) v, the contract of `tinyllm_ops.scaled_dot_product_attention_grouped`, for
head dims 64, 80, 96 and 128, without a mask or with the causal one; keys and values are numbers or
affine codes. MLX computes the rest: masks that are arrays, other head dims and formats.

Keys and values are read through their strides, as the cache has them, once for all heads of a
group: query i of head g is row i G + g of the G = H / Hkv heads that share them. `decode.py` is for
a token, `tiles.py` for several, `stored_keys.py` about formats.

None of the numbers was chosen by measuring: nobody has run this on a Mac yet.
"""

from __future__ import annotations

import math

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, Weight
from tinyllm_ops.contract import check_attention

from tinyllm_kernels.metal.attention.decode import decode
from tinyllm_kernels.metal.attention.stored_keys import StoredKeys
from tinyllm_kernels.metal.attention.tiles import tiles

HEAD_DIMS = (64, 80, 96, 128)


def attention(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Float[mx.array, "..."] | str | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """Decode one token, or go through many by tiles; MLX computes what neither kernel knows."""
    check_attention(q, k, v, mask)
    *batch, _, length, dim = q.shape
    if q.size == 0 or k.shape[-2] == 0:
        return mx.zeros(q.shape, q.dtype)
    stored = StoredKeys.of(k, v)
    if stored is None or isinstance(mask, mx.array) or dim not in HEAD_DIMS:
        return MLX.attention(q, k, v, scale, mask)
    scale = dim**-0.5 if scale is None else scale
    rows = math.prod(batch)
    queries = q.reshape(rows, *q.shape[-3:])
    stored = stored.map(lambda part: part.reshape(rows, *part.shape[-3:]))
    if length == 1:
        out = decode(queries, stored, scale)
    else:
        out = tiles(queries, stored, scale, causal=isinstance(mask, str))
    return out.reshape(q.shape)
