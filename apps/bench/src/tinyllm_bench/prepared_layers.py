"""The same weight of several layers, as each OpSet wants it in memory."""

from collections.abc import Sequence

from tinyllm_ops import OpSet, Weight


class PreparedLayers:
    """Weights that an OpSet may have arranged for itself, as it would those of a model."""

    def __init__(self, layers: Sequence[Weight]) -> None:
        """Hold the weights of the layers, as they were loaded."""
        self._layers = layers
        self._prepared: dict[str, list[Weight]] = {}

    def of(self, ops: OpSet, call: int) -> Weight:
        """The weight that a call reads: calls go from layer to layer. The first one prepares."""
        layers = self._prepared.get(ops.name)
        if layers is None:
            weights = {str(i): layer for i, layer in enumerate(self._layers)}
            ops.prepare(weights)
            layers = self._prepared[ops.name] = list(weights.values())
        return layers[call % len(layers)]
