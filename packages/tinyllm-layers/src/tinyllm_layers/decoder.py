"""Decoder layers, and the loop over them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import OpSet, QuantizedTensor, Weight

from tinyllm_layers.attention import GroupedQueryAttention
from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import LayerCache
from tinyllm_layers.gated_attention import GatedAttention
from tinyllm_layers.gated_delta_net import GatedDeltaNet
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.norm import RMSNorm


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """h = x + mixer(norm1(x)); out = h + mlp(norm2(h)): the pre-norm residual layer.

    Attributes:
        input_norm: the norm before the mixer.
        mixer: the half that reads earlier tokens: attention, or a recurrent layer.
        post_attention_norm: the norm before the MLP.
        mlp: the feed-forward half.
    """

    input_norm: RMSNorm
    mixer: GroupedQueryAttention | GatedAttention | GatedDeltaNet
    post_attention_norm: RMSNorm
    mlp: MLP | MoE

    def __call__(
        self, x: Float[mx.array, "B L E"], batch: Batch, cache: LayerCache
    ) -> Float[mx.array, "B L E"]:
        """Compute L new tokens of each row, which the cache then includes."""
        h = self.mixer(self.input_norm(x), batch, cache, residual=x)
        return self.mlp(self.post_attention_norm(h), residual=h, phase=batch.phase)


@dataclass(frozen=True, eq=False)
class LayerStack:
    """The loop over decoder layers. The stack of a backend must give the same results.

    Attributes:
        layers: the layers, in the order of computation.
    """

    layers: Sequence[DecoderLayer]

    def __call__(
        self, x: Float[mx.array, "B L E"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """Compute L new tokens of each row.

        Args:
            x: the embedded tokens.
            batch: the layout of the pass.
            caches: one cache per layer. Each layer appends the new tokens to its cache.

        Raises:
            ValueError: if the number of caches is not the number of layers, or a position lies
                beyond the context of the model.
        """
        check_caches(self.layers, caches)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, batch, cache)
        return x


def check_caches(layers: Sequence[DecoderLayer], caches: Sequence[LayerCache]) -> None:
    """Raise ValueError unless there is one cache per layer."""
    if len(caches) != len(layers):
        raise ValueError(f"caches: expected {len(layers)}, one per layer, got {len(caches)}")


def weights_of(layer: object) -> list[Weight]:
    """List the weights of a layer, or of a sequence of layers, in the order of the fields."""
    if isinstance(layer, mx.array | QuantizedTensor):
        return [layer]
    if isinstance(layer, list | tuple):
        return [w for each in layer for w in weights_of(each)]
    if isinstance(layer, OpSet) or not is_dataclass(layer):
        return []
    return [w for field in fields(layer) for w in weights_of(getattr(layer, field.name))]
