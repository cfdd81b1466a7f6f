"""Rows of a quantized table, one number for a thread.

The row is BITS/8 bytes a number to read and two or four to write; a scale serves 32 numbers or
more. Neighbors read the same word, which is one access for all of them, and write side by side. So
few bytes are moved for a token that only the launch counts. No threadgroup memory.
"""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import MLX, QuantizedTensor, Weight
from tinyllm_ops.contract import check_embedding
from tinyllm_ops.quantized_tensor import AFFINE

from tinyllm_kernels.metal.kernel import Kernel

THREADS = 256

_EMBEDDING = Kernel(
    "embedding",
    ("codes.metal", "embedding/embedding.metal"),
    ("ids", "packed", "scales", "biases", "dim", "group_size"),
    ("y",),
    """
    embedding<T, BITS>(ids, packed, scales, biases, y, uint(dim), uint(group_size),
                       threadgroup_position_in_grid.y, thread_position_in_grid.x);
    """,
)


def embedding(ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
    """w[ids]; see `tinyllm_ops.embedding`. Tables that are not affine are left to MLX."""
    check_embedding(ids, w)
    if not isinstance(w, QuantizedTensor) or w.mode != AFFINE or ids.size == 0:
        return MLX.embedding(ids, w)
    dim = w.shape[1]
    assert w.biases is not None  # the affine mode has them
    (y,) = _EMBEDDING(
        (ids.reshape(-1).astype(mx.int32), w.packed, w.scales, w.biases, dim, w.group_size),
        [((*ids.shape, dim), w.scales.dtype)],
        groups=(-(-dim // THREADS), ids.size, 1),
        group=(THREADS, 1, 1),
        template=[("T", w.scales.dtype), ("BITS", w.bits)],
    )
    return y
