"""What a whole model's forward pass cannot do without."""

import math
from collections.abc import Mapping

from tinyllm_ops import Weight
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.weights import expected_shapes

from tinyllm_bench.cost import Cost, attention_flops

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"


def decode_cost(config: QwenConfig, nbytes: Mapping[str, int], keys: int, key_bytes: int) -> Cost:
    """One token that sees `keys` tokens, itself included.

    Args:
        config: the model.
        nbytes: of each tensor, by name.
        keys: tokens in the cache.
        key_bytes: of one number in the cache.
    """
    seen = sum(_visible(config, layer, keys) for layer in range(config.num_hidden_layers))
    return Cost(
        bytes=_weight_bytes(config, nbytes, 1) + _key_numbers(config) * seen * key_bytes,
        flops=2 * (_block_numbers(config) + _head_numbers(config)) + _attention(config, seen),
    )


def prefill_cost(
    config: QwenConfig, nbytes: Mapping[str, int], tokens: int, key_bytes: int
) -> Cost:
    """A prompt of so many tokens from an empty cache, and the logits after its last one.

    Every block is counted whole for every token, as is usual; of the last one only keys and values
    are of use to the next token, and who leaves the rest out can seem that much faster.
    """
    layers = range(config.num_hidden_layers)
    pairs = sum(_visible(config, layer, i + 1) for layer in layers for i in range(tokens))
    kept = len(layers) * tokens * _key_numbers(config)
    return Cost(
        bytes=_weight_bytes(config, nbytes, tokens) + kept * key_bytes,
        flops=2 * (_block_numbers(config) * tokens + _head_numbers(config))
        + _attention(config, pairs),
    )


def weight_bytes(weights: Mapping[str, Weight]) -> dict[str, int]:
    """Bytes of each tensor, packed ones as they are packed."""
    return {name: weight.nbytes for name, weight in weights.items()}


def _weight_bytes(config: QwenConfig, nbytes: Mapping[str, int], tokens: int) -> int:
    """What is read of the weights.

    All of them, but of experts those chosen at most, and of an embedding that is not the head the
    rows of the tokens.
    """
    total = 0.0
    for name, size in nbytes.items():
        share = 1.0
        if name == _EMBEDDING and not config.tie_word_embeddings:
            share = min(1.0, tokens / config.vocab_size)
        elif config.experts is not None and "switch_mlp" in name:
            share = min(
                1.0, tokens * config.experts.num_experts_per_tok / config.experts.num_experts
            )
        total += share * size
    return int(total)


def _block_numbers(config: QwenConfig) -> int:
    """Numbers in the matrices that one token is multiplied with, without the head."""
    total = 0
    for name, shape in expected_shapes(config).items():
        if len(shape) < 2 or name in (_EMBEDDING, _HEAD):
            continue
        numbers = math.prod(shape)
        if config.experts is not None and "switch_mlp" in name:
            numbers = numbers // shape[0] * config.experts.num_experts_per_tok
        total += numbers
    return total


def _head_numbers(config: QwenConfig) -> int:
    return config.vocab_size * config.hidden_size


def _key_numbers(config: QwenConfig) -> int:
    """Numbers that one layer keeps of one token: a key and a value for each of Hkv heads."""
    return 2 * config.num_key_value_heads * config.head_dim


def _visible(config: QwenConfig, layer: int, keys: int) -> int:
    """Of so many tokens those that a layer sees."""
    window = config.sliding_window
    limited = window is not None and layer in window.layers
    return min(keys, window.size) if window is not None and limited else keys


def _attention(config: QwenConfig, pairs: int) -> int:
    return attention_flops(config.num_attention_heads, config.head_dim, pairs)
