"""Backends: ops with their own stack of layers and their own layout of weights."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import Fusion, OpSet, Weight

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import LayerCache, Zeros
from tinyllm_layers.decoder import DecoderLayer, LayerStack


@runtime_checkable
class Stack(Protocol):
    """The type of `LayerStack` and of the stacks of backends."""

    def __call__(
        self, x: Float[mx.array, "B L E"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """See `LayerStack`."""


def keep_as_loaded(weights: MutableMapping[str, Weight]) -> None:
    """Leave the weights unchanged. This function is the default of `Backend.prepare`."""


def bytes_as_loaded(weight: Weight) -> int:
    """Return the size of a weight. This function is the default of `Backend.prepared_bytes`."""
    return weight.nbytes


@dataclass(frozen=True)
class Backend(OpSet):
    """An OpSet with its own stack of layers and its own layout of weights.

    Attributes:
        stack: makes a faster stack of given layers; None for `LayerStack`. The fusion names all ops
            that the stack computes. If one of these ops is replaced, `LayerStack` runs.
        prepare: changes the layout of the weights in a dict, before layers are made of the weights.
            The function replaces one weight before it reads the next, so that loading needs no
            second copy of the checkpoint. Every OpSet reads the same numbers from prepared weights.
        prepared_bytes: returns the bytes that a weight takes after `prepare`. The function reads
            shapes and dtypes alone, so that the weight can be one that was never computed.
        zeros: makes the pages and states of many sequences, from a shape and a dtype.
    """

    stack: Fusion[Callable[[Sequence[DecoderLayer]], Stack]] | None = None
    prepare: Callable[[MutableMapping[str, Weight]], None] = keep_as_loaded
    prepared_bytes: Callable[[Weight], int] = bytes_as_loaded
    zeros: Zeros = mx.zeros


def make_stack(layers: Sequence[DecoderLayer], ops: OpSet) -> Stack:
    """Make the stack of the backend `ops`, or a `LayerStack` if `ops` has no stack."""
    if isinstance(ops, Backend) and ops.stack is not None:
        return ops.stack.function(layers)
    return LayerStack(layers)
