"""The settings of sliding-window attention, in which a token attends only to recent tokens."""

from dataclasses import dataclass

from tinyllm_qwen.config.fields import Fields
from tinyllm_qwen.config.model_type import ModelType


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """The layers with a sliding window, and the size of the window.

    Attributes:
        size: the number of tokens that a token attends to, itself included.
        layers: the numbers of the layers with the window. In other layers, a token attends to all
            earlier tokens.
    """

    size: int
    layers: frozenset[int]

    @classmethod
    def from_hf(
        cls, fields: Fields, model_type: ModelType, num_hidden_layers: int
    ) -> "SlidingWindow | None":
        """Read `use_sliding_window`, `sliding_window`, `max_window_layers` and `layer_types`.

        `layer_types` (transformers 5) lists the kind of each layer. Without it, the layers from
        `max_window_layers` on have a window in Qwen2 and Qwen3, and all layers in Qwen3-MoE.

        Returns:
            The settings, or None if no layer has a window.

        Raises:
            CheckpointError: if a field is missing, of the wrong type, or contradicts another field.
        """
        slides = fields.flag("use_sliding_window", default=False)
        listed = fields.layers_of("sliding_attention", "full_attention", num_hidden_layers)
        if listed is not None:
            layers = listed
            if layers and not slides:
                raise fields.error("use_sliding_window", "true, since layer_types has such layers")
        elif model_type == "qwen3_moe":
            layers = frozenset(range(num_hidden_layers))
        else:
            full = fields.integer("max_window_layers", 0, 1 << 31, default=28)
            layers = frozenset(range(min(full, num_hidden_layers), num_hidden_layers))
        if not (slides and layers) or fields.raw("sliding_window") is None:
            return None
        return cls(size=fields.integer("sliding_window", 1, (1 << 31) - 1), layers=layers)
