"""Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE: tokens to logits."""

from collections.abc import Mapping, Sequence

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_layers import (
    MLP,
    Biases,
    DenseCache,
    Embedding,
    GroupedQueryAttention,
    KVCache,
    LayerCache,
    MoE,
    PagedCache,
    QuantizedCache,
    RMSNorm,
    RoPE,
    RotatingCache,
    ShardedEmbedding,
    TransformerBlock,
    run_blocks,
)
from tinyllm_ops import REFERENCE, OpSet, QuantizedTensor, Weight

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.parallel.share import Share
from tinyllm_qwen.sampling.best_tokens import BestTokens


class Qwen:
    """Embedding, a stack of blocks, a last norm, a head.

    Attributes:
        config: the architecture.
        ops: the implementation of its maths.
        share: which part of every layer, or which layers, are here, and who has the others; None
            if all is here.
        part: the architecture of what is here: `config`, or one of fewer heads and so on.
        layers: the numbers of the blocks that are here.
    """

    def __init__(
        self,
        config: QwenConfig,
        weights: Mapping[str, Weight],
        *,
        ops: OpSet = REFERENCE,
        share: Share | None = None,
    ) -> None:
        """Hang the weights into the architecture.

        Args:
            config: the architecture.
            weights: tensors by the names that Hugging Face gives them, without "model."; experts
                by those of MLX, stacked.
            ops: the implementation of the model's maths; `ops.prepare(weights)` first is not
                needed, and faster.
            share: where the weights are one process's part of them.

        Raises:
            KeyError: if a weight is missing.
            ValueError: if one has the wrong shape; `tinyllm_qwen.load` says it more kindly.
        """
        self.config = config
        self.ops = ops
        self.share = share
        self.part = config if share is None else share.partition.local(config)
        self.embed_tokens = _embedding(config, weights["embed_tokens.weight"], share, ops)
        held = None if share is None else share.partition.layers
        self.layers = range(config.num_hidden_layers) if held is None else held
        self.blocks = [_block(self.part, weights, i, share, ops) for i in self.layers]
        self.norm = _norm(weights, "norm.weight", config.hidden_size, config, ops)
        self.lm_head = None if config.tie_word_embeddings else weights["lm_head.weight"]

    def __call__(
        self,
        tokens: Integer[mx.array, "B L"],
        cache: Sequence[LayerCache] | None = None,
        *,
        last_only: bool = False,
    ) -> Float[mx.array, "B out V"]:
        """Score every possible next token after each token, or after the last one.

        Args:
            tokens: ids of L tokens that follow those in the cache.
            cache: one for each block, from `make_cache`; they take in the new tokens. Without
                any, the tokens are a text of their own.
            last_only: give the logits `B 1 V` of the last position alone, as prefill wants.

        Raises:
            ValueError: if there are not as many caches as blocks.
        """
        h = self.hidden(tokens, self.make_cache() if cache is None else cache)
        return self.head(h[:, -1:] if last_only else h)

    def hidden(
        self,
        tokens: Integer[mx.array, "B L"],
        cache: Sequence[LayerCache],
        *,
        rows: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows L E"]:
        """Pass tokens through all blocks; what leaves the last one, not yet normalized.

        Args:
            tokens: ids of L new tokens of each row; where they stand is the caches' to say.
            cache: one for each block; they take in the new tokens.
            rows: which of the B rows to give, those that something follows; None gives all.

        Raises:
            ValueError: if there are not as many caches as blocks.
        """
        # The scales of float formats are bytes, which leave the dtype of the rows open.
        h = self.embed_tokens(tokens).astype(self.dtype)
        stages = None if self.share is None else self.share.stages
        h = h if stages is None else stages.taken_over(h)
        h = run_blocks(h, self.blocks, cache)
        h = h if stages is None else stages.handed_on(h)
        return h if rows is None else h[mx.array(list(rows), dtype=mx.int32)]

    def head(self, h: Float[mx.array, "B L E"]) -> Float[mx.array, "B L V"]:
        """Score every possible next token, from what left the last block."""
        scores, share = self._scores(h), self.share
        if share is None:
            return scores
        parts = mx.moveaxis(share.ranks.stack(self._padded(scores)), 0, -2)  # B L ranks rows
        return parts.flatten(-2)[..., : self.config.vocab_size]

    def best(self, h: Float[mx.array, "B L E"], k: int) -> BestTokens:
        """Find the likeliest next tokens, from what left the last block.

        Where several processes share the vocabulary, each gives its k best: the k best of all are
        among them, and far fewer numbers travel than for all scores.

        Args:
            h: what left the last block.
            k: how many are wanted; there may be more.

        Raises:
            ValueError: if k is not in 1..V.
        """
        if not 1 <= k <= self.config.vocab_size:
            raise ValueError(f"k: expected 1 to {self.config.vocab_size}, got {k}")
        scores, share = self._scores(h), self.share
        if share is None:
            return BestTokens.among(scores, k, 0, self.ops)
        first, padded = share.partition.vocabulary.start, self._padded(scores)
        own = BestTokens.among(padded, min(k, padded.shape[-1]), first, self.ops)
        return BestTokens.joined(share.ranks.stack(own.packed()))

    def make_cache(
        self, *, kv_bits: int | None = None, max_size: int | None = None
    ) -> list[KVCache]:
        """Make empty caches for one sequence (or for rows that stay in step).

        A layer with a sliding window keeps what the window shows, in the dtype of the model,
        whatever the others do.

        Args:
            kv_bits: quantize keys and values to so many bits, 8 or 4 as a rule.
            max_size: keep only the first tokens and the last ones, so many in all.

        Raises:
            ValueError: if both are given, or the head dim does not divide into groups.
        """
        if kv_bits is not None and max_size is not None:
            raise ValueError("kv_bits, max_size: expected at most one, got both")
        group_size = 0 if kv_bits is None else self._cache_group_size()
        window = self.config.sliding_window

        def cache_of(layer: int) -> KVCache:
            if window is not None and layer in window.layers:
                size = window.size if max_size is None else min(window.size, max_size)
                return RotatingCache(size, keep=0)
            if kv_bits is not None:
                return QuantizedCache(kv_bits, group_size)
            return DenseCache() if max_size is None else RotatingCache(max_size)

        return [cache_of(layer) for layer in self.layers]

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None
    ) -> list[PagedCache]:
        """Make empty pages for many sequences; of the heads and layers that are here.

        Args:
            count: how many.
            page_size: tokens that one holds.
            kv_bits: quantize keys and values to so many bits, 8 or 4 as a rule.

        Raises:
            ValueError: if the head dim does not divide into groups.
        """
        config, window = self.part, self.config.sliding_window
        group_size = 0 if kv_bits is None else self._cache_group_size()
        return [
            PagedCache.empty(
                (count, config.num_key_value_heads, page_size, config.head_dim),
                self.dtype,
                bits=kv_bits,
                group_size=group_size,
                window=window.size if window is not None and layer in window.layers else None,
            )
            for layer in self.layers
        ]

    def pages_within(self, memory_bytes: int, page_size: int, *, kv_bits: int | None = None) -> int:
        """How many pages take no more memory than that in any process that shares the model.

        Args:
            memory_bytes: that all pages of a process may take.
            page_size: as for `make_pages`.
            kv_bits: as for `make_pages`.
        """
        # Of this process alone: a `Leader` makes pages everywhere.
        page = Qwen.make_pages(self, 1, page_size, kv_bits=kv_bits)
        count = memory_bytes // sum(layer.nbytes for layer in page)
        if self.share is None:
            return count
        return int(mx.min(self.share.ranks.stack(mx.array(count, dtype=mx.int64))))

    def copy_pages(self, pages: Sequence[PagedCache], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages of all layers, from the first of each pair to the second."""
        for cache in pages:
            cache.copy(pairs)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, packed ones as they are packed."""
        return sum(weight.nbytes for weight in self.weights())

    def weights(self) -> list[Weight]:
        """Every weight of the model, in the order in which a token meets them."""
        found = [self.embed_tokens.weight]
        for block in self.blocks:
            attention, mlp = block.attention, block.mlp
            norms = (block.attention_norm, attention.q_norm, attention.k_norm, block.mlp_norm)
            biases = attention.biases
            found += [norm.weight for norm in norms if norm is not None]
            found += [attention.wq, attention.wk, attention.wv, attention.wo]
            found += [b for b in (biases.q, biases.k, biases.v, biases.o) if b is not None]
            found += [mlp.w_router] if isinstance(mlp, MoE) else []
            found += [mlp.w_gate, mlp.w_up, mlp.w_down]
        found.append(self.norm.weight)
        return found if self.lm_head is None else [*found, self.lm_head]

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of activations: that of the norms."""
        return self.norm.weight.dtype

    def _scores(self, h: Float[mx.array, "B L E"]) -> Float[mx.array, "B L rows"]:
        """The score of every token whose row is here."""
        h = self.norm(h)
        if self.lm_head is None:
            return self.embed_tokens.as_linear(h)
        return self.ops.linear(h, self.lm_head)

    def _padded(self, scores: Float[mx.array, "B L rows"]) -> Float[mx.array, "B L rows_of_first"]:
        """As many scores as the first process has: the last one may have fewer tokens."""
        ranks = 1 if self.share is None else self.share.ranks.size
        missing = -(-self.config.vocab_size // ranks) - scores.shape[-1]
        if not missing:
            return scores
        return mx.pad(scores, [(0, 0), (0, 0), (0, missing)], constant_values=-mx.inf)

    def _cache_group_size(self) -> int:
        """The widest group that divides the head dim."""
        head_dim = self.config.head_dim
        for group_size in (64, 32):
            if head_dim % group_size == 0:
                return group_size
        raise ValueError(f"kv_bits: expected a head dim in groups of 32, the model has {head_dim}")


def _embedding(config: QwenConfig, weight: Weight, share: Share | None, ops: OpSet) -> Embedding:
    """The table of token vectors, or what is here of it."""
    if share is None:
        return Embedding(config.vocab_size, config.hidden_size, weight, ops=ops)
    held = share.partition.vocabulary
    return ShardedEmbedding(held, config.hidden_size, weight, share.ranks, ops=ops)


def _block(
    config: QwenConfig, weights: Mapping[str, Weight], index: int, share: Share | None, ops: OpSet
) -> TransformerBlock:
    """Block `index` of the stack."""
    ranks = None if share is None else share.adders
    width, head_dim = config.hidden_size, config.head_dim
    attention = f"layers.{index}.self_attn"

    def bias(name: str, wanted: bool) -> mx.array | None:
        return _vector(weights, f"{attention}.{name}_proj.bias") if wanted else None

    def head_norm(name: str) -> RMSNorm | None:
        if not config.qk_norm:
            return None
        return _norm(weights, f"{attention}.{name}_norm.weight", head_dim, config, ops)

    return TransformerBlock(
        GroupedQueryAttention(
            width,
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
            *(weights[f"{attention}.{name}_proj.weight"] for name in "qkvo"),
            rope=RoPE(
                head_dim,
                config.context_length,
                config.rope_theta,
                scaling=config.rope_scaling,
                ops=ops,
            ),
            biases=Biases(
                q=bias("q", config.attention_bias),
                k=bias("k", config.attention_bias),
                v=bias("v", config.attention_bias),
                o=bias("o", config.output_bias and (ranks is None or ranks.adds_residual)),
            ),
            q_norm=head_norm("q"),
            k_norm=head_norm("k"),
            ops=ops,
        ),
        _mlp(config, weights, index, share, ops),
        _norm(weights, f"layers.{index}.input_layernorm.weight", width, config, ops),
        _norm(weights, f"layers.{index}.post_attention_layernorm.weight", width, config, ops),
        ranks,
    )


def _mlp(
    config: QwenConfig, weights: Mapping[str, Weight], index: int, share: Share | None, ops: OpSet
) -> MLP | MoE:
    """The feed-forward half of block `index`."""
    width, mlp, experts = config.hidden_size, f"layers.{index}.mlp", config.experts
    if experts is None or index not in experts.layers:
        projections = (weights[f"{mlp}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return MLP(width, config.intermediate_size, *projections, ops=ops)
    stacks = (weights[f"{mlp}.switch_mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return MoE(
        width,
        experts.intermediate_size,
        experts.num_experts,
        experts.num_experts_per_tok,
        weights[f"{mlp}.gate.weight"],
        *stacks,
        norm_topk_prob=experts.norm_topk_prob,
        held=None if share is None else share.partition.experts,
        ops=ops,
    )


def _norm(
    weights: Mapping[str, Weight], name: str, dim: int, config: QwenConfig, ops: OpSet
) -> RMSNorm:
    """The norm whose weight has the name."""
    return RMSNorm(dim, _vector(weights, name), config.rms_norm_eps, ops=ops)


def _vector(weights: Mapping[str, Weight], name: str) -> mx.array:
    """A weight that nothing quantizes."""
    weight = weights[name]
    if isinstance(weight, QuantizedTensor):
        raise ValueError(f"{name}: expected a plain array, got a quantized one")
    return weight
