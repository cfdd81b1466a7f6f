"""How likely the model thought a token."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Float32, Integer

from tinyllm_ops.contract import check_log_probability

_BLOCK = 512


def log_probability(
    x: Float[mx.array, "*batch V"], ids: Integer[mx.array, "*batch K"]
) -> Float32[mx.array, "*batch K"]:
    """log softmax(x) at `ids`: x[id] - max x - log sum exp(x - max x), in float32.

    Raises:
        ValueError: if x is not floating, its rows are empty, or the leading axes differ.
    """
    check_log_probability(x, ids)
    # Differences from the maximum before the logarithm: at scores of 1e4 float32 has steps of
    # 1e-3, and log-probabilities deserve better.
    scores = x.astype(mx.float32)
    below_max = scores - scores.max(axis=-1, keepdims=True)
    log_total = mx.log(_sum(mx.exp(below_max)))[..., None]
    return mx.take_along_axis(below_max, ids, axis=-1) - log_total


def _sum(x: Float[mx.array, "*batch V"]) -> Float[mx.array, "*batch"]:
    # In two levels, because MLX's CPU sum runs through a row with one accumulator: over 151,936
    # probabilities it (and mx.logsumexp with it) is off by 2e-4, blocks of 512 by 5e-7.
    whole = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _BLOCK)])
    return mx.unflatten(whole, -1, (-1, _BLOCK)).sum(axis=-1).sum(axis=-1)
