"""Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE: tokens to logits."""

from collections.abc import Mapping, Sequence

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_layers import Batch, KVCache, LayerCache, PagedCache, make_stack, weights_of
from tinyllm_ops import REFERENCE, OpSet, Weight

from tinyllm_qwen.caches import following, make_caches, make_pages, page_bytes
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.layers_from_weights import decoder_layer, embedding, norm
from tinyllm_qwen.parallel.groups import ParallelGroups
from tinyllm_qwen.sampling.best_tokens import BestTokens, check_num_best


class Qwen:
    """Embedding, a stack of decoder layers, a last norm, a head.

    Attributes:
        config: the architecture.
        ops: the implementation of its maths.
        groups: the processes that share the model, and the part of it in this process.
        embed_tokens: the embedding.
        layers: the decoder layers.
        stack: the stack of the decoder layers, made for `ops`.
        norm: the last norm.
        lm_head: the head, or None if it is the embedding.
    """

    def __init__(
        self,
        config: QwenConfig,
        weights: Mapping[str, Weight],
        *,
        ops: OpSet = REFERENCE,
        groups: ParallelGroups | None = None,
    ) -> None:
        """Make the layers from their weights.

        Args:
            config: the architecture of the whole model.
            weights: tensors by their Hugging Face names without "model.". Experts are stacked and
                have MLX's names. A `Backend` may prepare the weights first.
            ops: the implementation of the maths, or a `Backend`.
            groups: the processes that share the model, and their parts of it.

        Raises:
            KeyError: if a weight is missing.
            ValueError: if a weight has another shape. `tinyllm_qwen.load` explains such errors.
        """
        groups = ParallelGroups.single(config) if groups is None else groups
        self.config, self.ops, self.groups = config, ops, groups
        self.embed_tokens = embedding(config, weights, groups, ops)
        self.layers = tuple(
            decoder_layer(config, weights, index, groups, ops) for index in groups.partition.layers
        )
        self.stack = make_stack(self.layers, ops)
        self.norm = norm(weights, "norm", config.hidden_size, config, ops)
        self.lm_head = None if config.tie_word_embeddings else weights["lm_head.weight"]

    def __call__(
        self,
        tokens: Integer[mx.array, "B L"],
        caches: Sequence[LayerCache] | None = None,
        batch: Batch | None = None,
        *,
        last: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows n V"]:
        """Score every possible next token after each token, or after the last ones.

        Args:
            tokens: ids of L new tokens of each row.
            caches: one cache a layer, from `make_cache`, to which the new tokens are appended.
                Without caches, the tokens are a whole text.
            batch: the layout of the pass; by default, the tokens follow the tokens in the caches.
            last: the number of last positions to score; all L unless given.
            rows: the rows to score; all B unless given.

        Raises:
            ValueError: if there is not one cache a layer, `last` is not in 1..L, or there is no
                such row.
        """
        check_selection(tokens, last, rows)
        caches = self.make_cache() if caches is None else caches
        batch = following(caches, *tokens.shape) if batch is None else batch
        return self.logits(_selected(self.hidden(tokens, batch, caches), last, rows))

    def hidden(
        self, tokens: Integer[mx.array, "B L"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """Compute the output of the last layer, not yet normalized."""
        # The embedding of a float format has scales in bytes, which leave the dtype open.
        h = self.groups.pipeline.recv(self.embed_tokens(tokens).astype(self.dtype))
        return self.groups.pipeline.send(self.stack(h, batch, caches))

    def logits(self, h: Float[mx.array, "B L E"]) -> Float[mx.array, "B L V"]:
        """Score every possible next token, from the output of the last layer."""
        return self.groups.ranks.all_gather_last(self._scores(h), self.config.vocab_size)

    def best(
        self,
        tokens: Integer[mx.array, "B L"],
        batch: Batch,
        caches: Sequence[LayerCache],
        k: int,
        *,
        rows: Sequence[int] | None = None,
    ) -> BestTokens:
        """Find the k best next tokens after the last token of each row.

        Processes that share the vocabulary exchange their k best tokens instead of all scores.

        Args:
            tokens: see `__call__`.
            batch: see `__call__`.
            caches: see `__call__`.
            k: the number of tokens wanted; there may be more.
            rows: see `__call__`.

        Raises:
            ValueError: if k is not in 1..V, or there is no such row.
        """
        check_num_best(k, self.config.vocab_size)
        check_selection(tokens, 1, rows)
        scores = self._scores(_selected(self.hidden(tokens, batch, caches), 1, rows))[:, 0]
        ranks, first = self.groups.ranks, self.groups.partition.vocabulary.start
        missing = -(-self.config.vocab_size // ranks.size) - scores.shape[-1]
        if missing:  # on the last rank: all ranks exchange k tokens
            scores = mx.pad(scores, [(0, 0), (0, missing)], constant_values=-mx.inf)
        return BestTokens.of(scores, min(k, scores.shape[-1]), first, self.ops).gathered(ranks)

    def make_cache(
        self, *, kv_bits: int | None = None, max_size: int | None = None
    ) -> list[KVCache]:
        """Make empty caches for one sequence; see `make_caches`."""
        layers = self.groups.partition.layers
        return make_caches(self.config, layers, kv_bits=kv_bits, max_size=max_size)

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None
    ) -> list[PagedCache]:
        """Make empty pages for many sequences; see `make_pages`."""
        part = self.groups.partition
        return make_pages(self.config, part, self.dtype, count, page_size, kv_bits=kv_bits)

    def copy_pages(self, pages: Sequence[PagedCache], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages of all layers, from the first of each pair to the second."""
        for cache in pages:
            cache.copy(pairs)

    def page_bytes(self, page_size: int, *, kv_bits: int | None = None) -> int:
        """Return the bytes of one page in all layers, in the process with most bytes."""
        parts = self.groups.partitions
        return page_bytes(self.config, parts, self.dtype, page_size, kv_bits=kv_bits)

    @property
    def num_layers(self) -> int:
        """The number of layers in this process, each with a cache."""
        return len(self.layers)

    @property
    def num_ranks(self) -> int:
        """The number of processes that share the model."""
        return self.groups.ranks.size

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of activations, which is that of the norms."""
        return self.norm.weight.dtype

    @property
    def nbytes(self) -> int:
        """The size of the weights in this process in bytes, in packed form."""
        return sum(weight.nbytes for weight in self.weights())

    def weights(self) -> list[Weight]:
        """List the weights in this process, in the order of computation."""
        return weights_of([self.embed_tokens, self.layers, self.norm, self.lm_head])

    def _scores(self, h: Float[mx.array, "B L E"]) -> Float[mx.array, "B L here"]:
        """Score the part of the vocabulary that this process has."""
        h = self.norm(h)
        if self.lm_head is None:
            return self.embed_tokens.as_linear(h)
        return self.ops.linear(h, self.lm_head)


def check_selection(
    tokens: Integer[mx.array, "B L"], last: int | None, rows: Sequence[int] | None
) -> None:
    """Raise ValueError unless the tokens have these last positions and rows."""
    batch, length = tokens.shape
    if last is not None and not 1 <= last <= length:
        raise ValueError(f"last: expected 1 to {length} positions, got {last}")
    if rows is not None and not all(0 <= row < batch for row in rows):
        raise ValueError(f"rows: expected numbers from 0 to {batch - 1}, got {list(rows)}")


def _selected(
    h: Float[mx.array, "B L E"], last: int | None, rows: Sequence[int] | None
) -> Float[mx.array, "rows n E"]:
    """The last positions of some rows."""
    h = h if last is None or last == h.shape[1] else h[:, -last:]
    if rows is None or list(rows) == list(range(h.shape[0])):
        return h
    return h[mx.array(list(rows), dtype=mx.int32)]
