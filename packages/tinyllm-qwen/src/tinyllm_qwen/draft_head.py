"""The draft head of Qwen3-Next and Qwen3.5, which predicts the token after the next token."""

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch, LayerCache, make_stack, weights_of
from tinyllm_ops import Weight

from tinyllm_qwen.layer_builder import LayerBuilder


class DraftHead:
    """A decoder layer for multi-token prediction (MTP), with norms and a projection before it.

        x_t = fc([norm_e(embed(token_(t+1))); norm_h(h_t)]);  out_t = norm(layer(x)_t)

    h_t is the hidden state of the model after position t, after the final norm. The embedding and
    the output head of the model turn `out_t` into the logits of token t + 2. For further draft
    tokens, the head is applied to its own output in place of h_(t+1). The formula is that of
    `Qwen3_5MultiTokenPredictor` in vLLM (vllm/model_executor/models/qwen3_5_mtp.py).

    The layer has attention with keys and values of its own. Position t of its cache depends on
    token t + 1.

    Attributes:
        embedding_norm: the norm of the embedded token.
        hidden_norm: the norm of the hidden state.
        fc: the projection, `E 2E`. Its first E columns belong to the embedding.
        layer: the decoder layer.
        stack: the stack of this layer, made for the ops.
        norm: the norm before the output head.
        ops: the implementation of the maths.
    """

    def __init__(self, builder: LayerBuilder) -> None:
        """Make the head from the weights `mtp.*`.

        Raises:
            KeyError: if a weight is missing.
            ValueError: if a weight has a wrong shape.
        """
        self.ops = builder.ops
        self.embedding_norm = builder.norm("mtp.pre_fc_norm_embedding")
        self.hidden_norm = builder.norm("mtp.pre_fc_norm_hidden")
        self.fc = builder.weights["mtp.fc.weight"]
        self.layer = builder.draft_layer()
        self.stack = make_stack([self.layer], self.ops)
        self.norm = builder.norm("mtp.norm")

    def __call__(
        self,
        embedded: Float[mx.array, "B L E"],
        hidden: Float[mx.array, "B L E"],
        batch: Batch,
        cache: LayerCache,
    ) -> Float[mx.array, "B L E"]:
        """Compute L positions of each row, which the cache then includes.

        Args:
            embedded: the embedding of the token after each position.
            hidden: the hidden state of each position, after the final norm of the model; or the
                output of this head.
            batch: the layout of the positions.
            cache: the cache of the head.
        """
        joined = mx.concatenate([self.embedding_norm(embedded), self.hidden_norm(hidden)], axis=-1)
        x = self.ops.linear(joined, self.fc, phase=batch.phase)
        return self.norm(self.stack(x, batch, [cache]))

    def weights(self) -> list[Weight]:
        """List the weights in the order of computation."""
        return weights_of([self.embedding_norm, self.hidden_norm, self.fc, self.layer, self.norm])
