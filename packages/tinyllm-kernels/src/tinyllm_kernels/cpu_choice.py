"""What a sampler asks of a row of scores, in the extension."""

from __future__ import annotations

from types import ModuleType

import mlx.core as mx
from jaxtyping import Float, Float32, Int32, Integer
from tinyllm_ops import MLX
from tinyllm_ops.contract import check_log_probability, check_scores, check_top_k
from tinyllm_ops.protocols import Argmax, LogProbability, TopK

from tinyllm_kernels.arguments import array, arrays


def argmax_of(native: ModuleType) -> Argmax:
    """Argmax in the extension `native`."""

    def argmax(x: Float[mx.array, "*batch V"]) -> Int32[mx.array, "*batch"]:
        """All threads share a row."""
        check_scores(x)
        return array(native.argmax(x)) if x.size else MLX.argmax(x)

    return argmax


def top_k_of(native: ModuleType) -> TopK:
    """Top-k in the extension `native`."""

    def top_k(
        x: Float[mx.array, "*batch V"], k: int
    ) -> tuple[Float[mx.array, "*batch k"], Int32[mx.array, "*batch k"]]:
        """Scores below the k best so far are passed over, a block at a time."""
        check_top_k(x, k)
        if x.size == 0:
            return MLX.top_k(x, k)
        scores, indices = arrays(native.top_k(x, k))
        return scores, indices

    return top_k


def log_probability_of(native: ModuleType) -> LogProbability:
    """Log-probabilities in the extension `native`."""

    def log_probability(
        x: Float[mx.array, "*batch V"], ids: Integer[mx.array, "*batch K"]
    ) -> Float32[mx.array, "*batch K"]:
        """Nothing of the length of the vocabulary is written."""
        check_log_probability(x, ids)
        if x.size == 0 or ids.size == 0:
            return mx.zeros(ids.shape)
        return array(native.log_probability(x, ids.astype(mx.int32)))

    return log_probability
