"""Decoder layers, the stack of them, and the backends that compute it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Fusion, OpSet, QuantizedTensor, Weight

from tinyllm_layers.attention import GroupedQueryAttention
from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import LayerCache
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.norm import RMSNorm


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """h = x + attention(norm1(x)); out = h + mlp(norm2(h)): the pre-norm residual layer.

    Attributes:
        input_norm: the norm before attention.
        attention: the first half.
        post_attention_norm: the norm before the MLP.
        mlp: the second half.
    """

    input_norm: RMSNorm
    attention: GroupedQueryAttention
    post_attention_norm: RMSNorm
    mlp: MLP | MoE

    def __call__(
        self, x: Float[mx.array, "B L E"], batch: Batch, cache: LayerCache
    ) -> Float[mx.array, "B L E"]:
        """Compute L new tokens of each row, whose keys and values go into the cache."""
        h = self.attention(self.input_norm(x), batch, cache, residual=x)
        return self.mlp(self.post_attention_norm(h), residual=h, phase=batch.phase)


@runtime_checkable
class Stack(Protocol):
    """Decoder layers one after the other."""

    def __call__(
        self, x: Float[mx.array, "B L E"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """See `LayerStack`."""
        ...


@dataclass(frozen=True, eq=False)
class LayerStack:
    """The loop over decoder layers. Every other stack gives the same numbers.

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
            caches: one cache a layer, to which the new tokens are appended.

        Raises:
            ValueError: if there is not one cache a layer, or a token lies beyond the context.
        """
        check_caches(self.layers, caches)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, batch, cache)
        return x


def check_caches(layers: Sequence[DecoderLayer], caches: Sequence[LayerCache]) -> None:
    """Raise ValueError unless there is one cache a layer."""
    if len(caches) != len(layers):
        raise ValueError(f"caches: expected {len(layers)}, one a layer, got {len(caches)}")


def keep_as_loaded(weights: MutableMapping[str, Weight]) -> None:
    """Leave weights as they are."""


@dataclass(frozen=True)
class Backend(OpSet):
    """An OpSet with a stack of its own and a layout of weights that it prefers.

    Attributes:
        stack: makes a faster stack of the layers, or None for `LayerStack`. It stands for all ops
            that it computes: replace one of them, and `LayerStack` runs.
        prepare: changes weights, by name, before layers are made of them. It replaces one weight
            before it reads the next, so that loading needs no second copy of the checkpoint.
            Prepared weights have the same numbers and can be read by every OpSet.
    """

    stack: Fusion[Callable[[Sequence[DecoderLayer]], Stack]] | None = None
    prepare: Callable[[MutableMapping[str, Weight]], None] = keep_as_loaded


def make_stack(layers: Sequence[DecoderLayer], ops: OpSet) -> Stack:
    """Make the stack of a backend, or a `LayerStack` where `ops` has none."""
    if isinstance(ops, Backend) and ops.stack is not None:
        return ops.stack.function(layers)
    return LayerStack(layers)


def weights_of(layer: object) -> list[Weight]:
    """List the weights of a layer, or of several, in the order of the fields."""
    if isinstance(layer, mx.array | QuantizedTensor):
        return [layer]
    if isinstance(layer, list | tuple):
        return [w for each in layer for w in weights_of(each)]
    if isinstance(layer, OpSet) or not is_dataclass(layer):
        return []
    return [w for field in fields(layer) for w in weights_of(getattr(layer, field.name))]
