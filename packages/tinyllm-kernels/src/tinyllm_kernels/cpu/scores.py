"""Native argmax, top-k and log-probabilities of rows of scores, for samplers."""

import mlx.core as mx
from jaxtyping import Float, Float32, Int32, Integer
from tinyllm_ops import MLX
from tinyllm_ops.checks import check_log_probability, check_scores, check_top_k

from tinyllm_kernels import _cpu as native


def argmax(x: Float[mx.array, "*batch V"]) -> Int32[mx.array, "*batch"]:
    """Return the index of the largest number of each row. All threads work on one row."""
    check_scores(x)
    return native.argmax(x) if x.size else MLX.argmax(x)


def top_k(
    x: Float[mx.array, "*batch V"], k: int
) -> tuple[Float[mx.array, "*batch k"], Int32[mx.array, "*batch k"]]:
    """Return the k largest numbers of each row, the largest first, and their indices.

    A block of scores below the k largest numbers found so far is skipped.
    """
    check_top_k(x, k)
    if x.size == 0:
        return MLX.top_k(x, k)
    scores, indices = native.top_k(x, k)
    return scores, indices


def log_probability(
    x: Float[mx.array, "*batch V"], ids: Integer[mx.array, "*batch K"]
) -> Float32[mx.array, "*batch K"]:
    """log softmax(x) at `ids`, without an intermediate array of length V."""
    check_log_probability(x, ids)
    if x.size == 0 or ids.size == 0:
        return mx.zeros(ids.shape)
    return native.log_probability(x, ids.astype(mx.int32))
