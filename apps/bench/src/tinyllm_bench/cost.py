"""Cost of a computation: the least bytes to move and operations to compute."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tinyllm_ops import Weight
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.caches import kv_group_size
from tinyllm_qwen.checkpoint.schema import expected_shapes

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"
_STATE_BYTES = 4  # of a number in a recurrent state, which is float32


@dataclass(frozen=True)
class Cost:
    """Least bytes and operations of a computation."""

    # Bytes read and written. Each operand counts once, a quantized operand with its packed size.
    bytes: int
    # Multiplications and additions of matrix products. The few operations of a norm or a softmax
    # are not counted.
    flops: int = 0

    def gbps(self, seconds: float) -> float:
        """Return gigabytes per second."""
        return self.bytes / seconds / 1e9

    def tflops(self, seconds: float) -> float:
        """Return TFLOP/s."""
        return self.flops / seconds / 1e12


def product_flops(rows: int, inner: int, columns: int) -> int:
    """Return the operations of a matrix product: a multiplication and an addition per term."""
    return 2 * rows * inner * columns


def attention_flops(heads: int, head_dim: int, pairs: int) -> int:
    """Return the operations of attention over `pairs` visible pairs of a query and a key."""
    return 4 * heads * head_dim * pairs


def causal_pairs(length: int, keys: int) -> int:
    """Return the number of visible pairs. The last of `length` queries sees all `keys`."""
    return sum(range(keys - length + 1, keys + 1))


@dataclass(frozen=True)
class ModelCosts:
    """Costs of a whole model."""

    config: QwenConfig  # the model
    nbytes: Mapping[str, int]  # bytes of each tensor by name
    number_bytes: int  # bytes of one number in the cache, or of a scale of quantized numbers
    kv_bits: int | None = None  # bits of quantized keys and values

    def decode(self, keys: int) -> Cost:
        """Return the cost of one decoded token that attends to `keys` tokens, itself included."""
        seen = {layer: self._visible(layer, keys) for layer in self._attention_layers}
        cached = sum(self._cached_bytes(layer, tokens) for layer, tokens in seen.items())
        return self._cost(1, cached, sum(seen.values()))

    def prefill(self, tokens: int) -> Cost:
        """Return the cost of a prompt from an empty cache, with the logits of its last token.

        Every layer counts in full for every token, as is usual. An implementation may skip the part
        of the last layer that the next token does not need, and then seems that much faster.
        """
        layers = self._attention_layers
        pairs = sum(self._visible(layer, i + 1) for layer in layers for i in range(tokens))
        cached = sum(self._cached_bytes(layer, tokens) for layer in layers)
        return self._cost(tokens, cached, pairs)

    @property
    def _attention_layers(self) -> list[int]:
        """The numbers of the layers with attention."""
        recurrent = self.config.recurrent
        layers = range(self.config.num_hidden_layers)
        return [layer for layer in layers if recurrent is None or layer not in recurrent.layers]

    def _states(self, tokens: int) -> Cost:
        """Return the cost of recurrent states: a pass reads and writes each, every token scans it.

        A token multiplies the matrix of a head by a key, adds a product of two vectors, and
        multiplies the matrix by a query.
        """
        sizes = self.config.recurrent
        numbers = 0 if sizes is None else len(sizes.layers) * sizes.value_width * sizes.key_dim
        return Cost(2 * _STATE_BYTES * numbers, 6 * numbers * tokens)

    def _cost(self, tokens: int, cached: int, pairs: int) -> Cost:
        """Return the cost of `tokens` tokens with attention to `cached` bytes of keys and values.

        Attention computes `pairs` of a query and a key. Both are summed over the layers.
        """
        config = self.config
        attention = attention_flops(config.num_attention_heads, config.head_dim, pairs)
        states = self._states(tokens)
        return Cost(
            self._weight_bytes(tokens) + cached + states.bytes,
            self._product_flops(tokens) + attention + states.flops,
        )

    def _cached_bytes(self, layer: int, tokens: int) -> int:
        """Return the bytes of the keys and values of `tokens` tokens in a layer.

        A quantized group also has a scale and a bias. A sliding window is never quantized.
        """
        config, window = self.config, self.config.sliding_window
        numbers = 2 * tokens * config.num_key_value_heads * config.head_dim
        if self.kv_bits is None or (window is not None and layer in window.layers):
            return numbers * self.number_bytes
        groups = numbers // kv_group_size(config.head_dim)
        return numbers * self.kv_bits // 8 + 2 * groups * self.number_bytes

    def _weight_bytes(self, tokens: int) -> int:
        """Return the bytes of weights that `tokens` tokens read.

        Experts count in the share that the tokens can choose at most. If the embedding is not also
        the head, only the rows of the tokens count.
        """
        config, total = self.config, 0.0
        for name, size in self.nbytes.items():
            share = 1.0
            if name == _EMBEDDING and not config.tie_word_embeddings:
                share = tokens / config.vocab_size
            elif config.experts is not None and "switch_mlp" in name:
                share = tokens * config.experts.num_experts_per_tok / config.experts.num_experts
            total += min(1.0, share) * size
        return int(total)

    def _product_flops(self, tokens: int) -> int:
        """Return the operations of the projections for all tokens, and of the head for one."""
        config, total = self.config, 0
        for name, shape in expected_shapes(config).items():
            if len(shape) < 2 or name in (_EMBEDDING, _HEAD):
                continue
            numbers = math.prod(shape)
            if config.experts is not None and "switch_mlp" in name:
                numbers = numbers // shape[0] * config.experts.num_experts_per_tok
            total += numbers
        return 2 * (total * tokens + config.vocab_size * config.hidden_size)

    def _visible(self, layer: int, keys: int) -> int:
        """Return how many of `keys` tokens a layer attends to."""
        window = self.config.sliding_window
        return keys if window is None or layer not in window.layers else min(keys, window.size)


def weight_bytes(weights: Mapping[str, Weight]) -> dict[str, int]:
    """Return the bytes of each tensor, packed if it is quantized, by name."""
    return {name: weight.nbytes for name, weight in weights.items()}
