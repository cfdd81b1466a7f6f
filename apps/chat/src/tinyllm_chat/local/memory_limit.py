"""The context length that the memory allows."""

from bisect import bisect_right

from tinyllm_qwen.free_memory import cache_bytes, free_memory
from tinyllm_qwen.language_model import LanguageModel

_GROWTH_PART = 4
"""A cache that grows has capacity for one more token in so many: see `DenseCache`."""


def context_in_memory(model: LanguageModel, kv_bits: int | None) -> int:
    """Return the most tokens whose caches fit into the free memory, within the context."""
    config, longest = model.config, model.config.context_length
    # Bytes of a token in all layers. Recurrent layers have none, whatever the length of a text.
    growing, sliding, size = model.page_bytes(1, kv_bits=kv_bits), 0, 0
    if config.sliding_window is not None:  # its layers keep the window alone, and never quantized
        layers, slides = config.num_hidden_layers, len(config.sliding_window.layers)
        growing = growing * (layers - slides) // layers
        sliding, size = model.page_bytes(1) * slides // layers, config.sliding_window.size

    def bytes_of(tokens: int) -> int:
        capacity = tokens + tokens // _GROWTH_PART
        return growing * capacity + sliding * min(capacity, size)

    return bisect_right(range(1, longest + 1), cache_bytes(free_memory()), key=bytes_of)
