"""Attention over the keys of a dense cache.

`decode.py` computes decode steps, one query of each head at a time. `tiles.py` computes prompts, 32
query rows at a time. The two kernels round differently, so the phase chooses the kernel. A prompt
chunk of one token therefore has the same bits as the token in a longer chunk. A call without a
phase treats one query of each head as a decode step.

The kernels support head dims of 64, 80, 96, 128 and 256, causal attention, and attention without a
mask. Keys and values are dense or affine codes (`stored_keys.py`). MLX computes array masks, other
head dims and other formats, and chooses its kernels by the number of queries.

Both kernels read keys and values in place, through their strides. A key is read once for all query
heads that share a key/value head: query i of head g is row i G + g of the G = H / Hkv heads.

These kernels have not run on a Mac yet, so none of the sizes was chosen by measuring.
"""

import math

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, Mask, Phase, Weight
from tinyllm_ops.checks import check_attention

from tinyllm_kernels.metal.attention.decode import decode
from tinyllm_kernels.metal.attention.stored_keys import StoredKeys
from tinyllm_kernels.metal.attention.tiles import tiles

HEAD_DIMS = (64, 80, 96, 128, 256)


def attention(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Mask = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """Compute softmax(q k^T * scale) v; see `tinyllm_ops.scaled_dot_product_attention_grouped`."""
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
