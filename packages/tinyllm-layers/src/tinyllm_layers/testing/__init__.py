"""Test tools for layers, caches and stacks: random layers, float64 oracles, passes in chunks.

The package needs the extra `testing` (numpy). Nothing else in `tinyllm_layers` imports it.

    layers = [random_decoder_layer("qwen3", seed=seed) for seed in range(3)]
    text = normal((2, 9, 64), seed=1)
    y = run_chunks(LayerStack(layers), text, [DenseCache() for _ in layers], (5, 1, 3))
    assert_close(y, oracle.decoder_layers(exact(text), layers))
"""

from tinyllm_layers.testing import oracle
from tinyllm_layers.testing.gated import random_gated_attention, random_gated_delta_net
from tinyllm_layers.testing.layers import (
    FAMILIES,
    Family,
    attention_of,
    dense,
    packed,
    random_attention,
    random_decoder_layer,
    random_mlp,
    random_moe,
    random_norm,
    random_pages,
)
from tinyllm_layers.testing.passes import paged_batches, run_chunks, run_pages

__all__ = [
    "FAMILIES",
    "Family",
    "attention_of",
    "dense",
    "oracle",
    "packed",
    "paged_batches",
    "random_attention",
    "random_decoder_layer",
    "random_gated_attention",
    "random_gated_delta_net",
    "random_mlp",
    "random_moe",
    "random_norm",
    "random_pages",
    "run_chunks",
    "run_pages",
]
