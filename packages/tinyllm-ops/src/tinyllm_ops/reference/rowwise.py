"""Ops that compute each row on its own: embedding, norm, activations, and ops on scores."""

import mlx.core as mx
from jaxtyping import Float, Float32, Int32, Integer

from tinyllm_ops.checks import (
    check_embedding,
    check_log_probability,
    check_rms_norm,
    check_scores,
    check_softmax,
    check_swiglu,
    check_top_k,
    require_floating,
)
from tinyllm_ops.quantization.tensor import QuantizedTensor, Weight, dequantize

_SUM_BLOCK = 512


def embedding(ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
    """w[ids], with w of shape `V E`. Only the requested rows of a quantized w are dequantized.

    The result has the dtype of w. For a quantized w it has the dtype of the scales, or float32 if
    the scales are bytes. Ids must lie in 0..V-1. The op does not check the ids, because reading
    them would force the graph to be computed.

    Raises:
        ValueError: if w is not a matrix or ids are not integers.
    """
    check_embedding(ids, w)
    if not isinstance(w, QuantizedTensor):
        return w[ids]
    return dequantize(w[ids], embedding_dtype(w.scales))


def embedding_dtype(scales: mx.array) -> mx.Dtype:
    """Return the dtype of the scales, or float32 if the scales are bytes."""
    return scales.dtype if mx.issubdtype(scales.dtype, mx.floating) else mx.float32


def rms_norm(
    x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
) -> Float[mx.array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).

    The mean is float32. The normalized value is rounded to the dtype of x before it is multiplied
    by the weight, as in the training of Qwen. In float32 and bfloat16, x^2 overflows if |x| is
    above about 1.8e19.

    Raises:
        ValueError: if the weight does not fit the last axis and dtype of x, or eps is negative.
    """
    check_rms_norm(x, weight, eps)
    wide = x.astype(mx.float32)
    mean_square = mx.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * mx.rsqrt(mean_square + eps)).astype(x.dtype) * weight


def softmax(x: Float[mx.array, "*shape"], axis: int = -1) -> Float[mx.array, "*shape"]:
    """exp(x - max x) / sum exp(x - max x) along `axis`, computed in float32.

    The maximum is subtracted so that exp cannot overflow. A row that contains only -inf holds the
    scores of a query that sees no key, and gives zeros instead of NaN. On a CPU, MLX adds with few
    accumulators: the relative error is 1e-5 for rows of 4,096 numbers, and 9e-4 for 151,936.

    Raises:
        ValueError: if x is not floating or does not have the axis.
    """
    check_softmax(x, axis)
    if x.shape[axis] == 0:
        return x
    scores = x.astype(mx.float32)
    top = mx.max(scores, axis=axis, keepdims=True)
    weights = mx.exp(scores - mx.where(top == -mx.inf, 0, top))
    total = weights.sum(axis=axis, keepdims=True)
    return (weights / mx.where(total == 0, 1, total)).astype(x.dtype)


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
        ValueError: if gate and up differ in shape or dtype, or are not floating.
    """
    check_swiglu(gate, up)
    return silu(gate) * up


def argmax(x: Float[mx.array, "*batch V"]) -> Int32[mx.array, "*batch"]:
    """Return the index of the largest number of each row, the first index if several are equal.

    NaN counts as the largest number, as in NumPy.

    Raises:
        ValueError: if x is not floating or its rows are empty.
    """
    check_scores(x)
    if x.size == 0:  # MLX does not reduce an array without rows
        return mx.zeros(x.shape[:-1], mx.int32)
    return mx.argmax(x, axis=-1).astype(mx.int32)


def top_k(
    x: Float[mx.array, "*batch V"], k: int
) -> tuple[Float[mx.array, "*batch k"], Int32[mx.array, "*batch k"]]:
    """Return the k largest numbers of each row, the largest first, and their indices.

    If several numbers are equal to the k-th largest, any of them may be returned. NaN ranks below
    all other numbers.

    Raises:
        ValueError: if x is not floating, or k is not in 1..V.
    """
    check_top_k(x, k)
    if x.size == 0:  # MLX does not partition an array without rows
        return mx.zeros((*x.shape[:-1], k), x.dtype), mx.zeros((*x.shape[:-1], k), mx.int32)
    # Partition first: a sort of all 151,936 scores takes longer than one token of a small model.
    found = mx.argpartition(-x, k - 1, axis=-1)[..., :k]
    scores = mx.take_along_axis(x, found, axis=-1)
    order = mx.argsort(-scores, axis=-1)
    indices = mx.take_along_axis(found, order, axis=-1).astype(mx.int32)
    return mx.take_along_axis(scores, order, axis=-1), indices


def log_probability(
    x: Float[mx.array, "*batch V"], ids: Integer[mx.array, "*batch K"]
) -> Float32[mx.array, "*batch K"]:
    """log softmax(x) at `ids`: x[id] - max x - log sum exp(x - max x), in float32.

    Raises:
        ValueError: if x is not floating, its rows are empty, ids are not integers, or the leading
            axes differ.
    """
    check_log_probability(x, ids)
    # Subtract the maximum before the logarithm: at scores of 1e4, float32 has steps of 1e-3.
    scores = x.astype(mx.float32)
    below_max = scores - scores.max(axis=-1, keepdims=True)
    log_total = mx.log(_sum(mx.exp(below_max)))[..., None]
    return mx.take_along_axis(below_max, ids, axis=-1) - log_total


def _sum(x: Float[mx.array, "*batch V"]) -> Float[mx.array, "*batch"]:
    # Sum blocks of 512 numbers first, because MLX's CPU sum adds up a row in one accumulator. Over
    # 151,936 probabilities the error of that sum (and of mx.logsumexp) is 2e-4. With blocks the
    # error is 5e-7.
    whole = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _SUM_BLOCK)])
    return mx.unflatten(whole, -1, (-1, _SUM_BLOCK)).sum(axis=-1).sum(axis=-1)
