"""Embedding lookup in a quantized table, with one thread for each number.

A thread reads BITS/8 bytes of codes and writes two or four bytes. 32 or more numbers share a scale.
Neighboring threads read the same word in one access, and write neighboring numbers. A token has so
few bytes that the launch takes most of the time. There is no threadgroup memory.
"""

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import MLX, QuantizedTensor, Weight
from tinyllm_ops.checks import check_embedding
from tinyllm_ops.quantization.tensor import AFFINE

from tinyllm_kernels.metal.kernel import Kernel

THREADS = 256

_EMBEDDING = Kernel(
    "embedding",
    ("codes.metal", "embedding/kernel.metal"),
    ("ids", "packed", "scales", "biases", "dim", "group_size"),
    ("y",),
    """
    embedding<T, BITS>(ids, packed, scales, biases, y, uint(dim), uint(group_size),
                       threadgroup_position_in_grid.y, thread_position_in_grid.x);
    """,
)


def embedding(ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
    """Return w[ids]; see `tinyllm_ops.embedding`. MLX computes tables that are not affine."""
    check_embedding(ids, w)
    if not isinstance(w, QuantizedTensor) or w.mode != AFFINE or ids.size == 0:
        return MLX.embedding(ids, w)
    dim = w.shape[1]
    (y,) = _EMBEDDING(
        (ids.reshape(-1).astype(mx.int32), *w.arrays, dim, w.group_size),
        [((*ids.shape, dim), w.scales.dtype)],
        threadgroups_per_grid=(-(-dim // THREADS), ids.size, 1),
        threads_per_threadgroup=(THREADS, 1, 1),
        template=[("T", w.scales.dtype), ("BITS", w.bits)],
    )
    return y
