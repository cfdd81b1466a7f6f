"""The same part of several layers, in the memory layout that each OpSet prefers."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Generic, TypeVar

from tinyllm_layers import Backend
from tinyllm_ops import OpSet, Weight

T = TypeVar("T")


class PreparedLayers(Generic[T]):
    """One object a layer, made for each OpSet when its first call asks for it."""

    def __init__(self, make: Callable[[OpSet], Sequence[T]]) -> None:
        """Make nothing yet.

        Args:
            make: the objects of all layers for an OpSet, at least one.
        """
        self._make = make
        self._layers: dict[str, Sequence[T]] = {}

    def of(self, ops: OpSet, call: int) -> T:
        """The object of a call: calls go from layer to layer."""
        layers = self._layers.get(ops.name)
        if layers is None:
            layers = self._layers[ops.name] = self._make(ops)
        return layers[call % len(layers)]


def prepared_weights(layers: Sequence[Weight]) -> PreparedLayers[Weight]:
    """The same weight of several layers, prepared as the weights of a model are."""

    def make(ops: OpSet) -> list[Weight]:
        weights = {str(i): layer for i, layer in enumerate(layers)}
        prepare(ops, weights)
        return list(weights.values())

    return PreparedLayers(make)


def prepare(ops: OpSet, weights: MutableMapping[str, Weight]) -> None:
    """Bring weights into the memory layout of a `Backend`; another OpSet has none."""
    if isinstance(ops, Backend):
        ops.prepare(weights)
