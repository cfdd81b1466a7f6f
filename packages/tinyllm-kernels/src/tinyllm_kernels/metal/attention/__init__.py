"""Attention over the keys of a dense cache.

`decode.py` computes decode steps, one query of each head at a time. `tiles.py` computes prompts, 32
query rows at a time. The two kernels round differently, so the phase chooses the kernel: a prompt
chunk of one token has the bits that the token has in a longer chunk. A call without a phase counts
one query a head as a decode step.

Head dims are 64, 80, 96 and 128, without a mask or with the causal one. Keys and values are dense
or affine codes (`stored_keys.py`). MLX computes array masks, additive or boolean, and the other
head dims and formats. It chooses its kernels by the number of queries.

Both kernels read keys and values through their strides, in place, and once for all query heads that
share a key/value head: query i of head g is row i G + g of the G = H / Hkv heads.

None of the sizes was chosen by measuring: these kernels have not run on a Mac yet.
"""

from __future__ import annotations

import math

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, Mask, Phase, Weight
from tinyllm_ops.checks import check_attention

from tinyllm_kernels.metal.attention.decode import decode
from tinyllm_kernels.metal.attention.stored_keys import StoredKeys
from tinyllm_kernels.metal.attention.tiles import tiles

HEAD_DIMS = (64, 80, 96, 128)


def attention(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Mask = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """softmax(q k^T * scale) v; see `tinyllm_ops.scaled_dot_product_attention_grouped`."""
    check_attention(q, k, v, mask)
    *batch, _, length, dim = q.shape
    if q.size == 0 or k.shape[-2] == 0:
        return mx.zeros(q.shape, q.dtype)
    stored = StoredKeys.of(k, v)
    if stored is None or isinstance(mask, mx.array) or dim not in HEAD_DIMS:
        return MLX.attention(q, k, v, scale, mask, phase=phase)
    scale = dim**-0.5 if scale is None else scale
    rows = math.prod(batch)
    queries = q.reshape(rows, *q.shape[-3:])
    stored = stored.map(lambda part: part.reshape(rows, *part.shape[-3:]))
    is_decode = length == 1 if phase is None else phase == "decode"
    attend = decode if is_decode else tiles
    return attend(queries, stored, scale, causal=isinstance(mask, str)).reshape(q.shape)
