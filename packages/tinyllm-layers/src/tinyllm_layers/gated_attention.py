"""The attention of Qwen3-Next and Qwen3.5: grouped-query attention with an output gate."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Weight, sigmoid
from tinyllm_ops.checks import require_shape

from tinyllm_layers.attention import GroupedQueryAttention, new_token_batch
from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import LayerCache
from tinyllm_layers.cache.dense import DenseCache


@dataclass(frozen=True, eq=False)
class GatedAttention:
    """wo(heads(x) * sigmoid(wg x)): attention whose output a gate scales (Qiu et al. 2025).

    Every feature of every head has a gate of its own. The gate lets a head return almost nothing
    for a token, which softmax alone cannot do.

    Attributes:
        attention: the attention without the gate. Its communicator and ops serve the gate too.
        wg: the projection to gates, `(H*D) E`, with the rows of the heads of this process.

    Raises:
        ValueError: if `wg` does not have the shape above.
    """

    attention: GroupedQueryAttention
    wg: Weight

    def __post_init__(self) -> None:
        """Check the weight."""
        require_shape("wg", self.wg, self.attention.wq.shape)

    def __call__(
        self,
        x: Float[mx.array, "B L E"],
        batch: Batch | None = None,
        cache: LayerCache | None = None,
        *,
        residual: Float[mx.array, "B L E"] | None = None,
    ) -> Float[mx.array, "B L E"]:
        """Let each of L new tokens attend to itself and to all tokens before it.

        Args:
            x: the new tokens, normalized.
            batch: as in `GroupedQueryAttention`.
            cache: as in `GroupedQueryAttention`.
            residual: an array that is added to the result.

        Raises:
            ValueError: as in `GroupedQueryAttention`.
        """
        attention = self.attention
        if batch is None:
            batch = new_token_batch(x, cache)
        gate = attention.ops.linear(x, self.wg, phase=batch.phase).astype(mx.float32)
        heads = attention.attend(x, batch, DenseCache() if cache is None else cache)
        gated = (heads.astype(mx.float32) * sigmoid(gate)).astype(x.dtype)
        return attention.output(gated, batch, residual)

    def check_positions(self, batch: Batch) -> None:
        """Raise ValueError if a position of the batch lies beyond the context."""
        self.attention.check_positions(batch)
