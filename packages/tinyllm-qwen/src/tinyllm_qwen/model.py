"""The models from Qwen2 to Qwen3.8, from token ids to logits."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_layers import (
    Backend,
    Batch,
    LayerCache,
    PagedCache,
    RecurrentPool,
    SequenceCache,
    make_stack,
    weights_of,
)
from tinyllm_ops import REFERENCE, OpSet, Weight
from tinyllm_ops.checks import require_array, require_rank

from tinyllm_qwen.caches import batch_after, cache_arrays, make_caches, make_pages
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.draft_head import DraftHead
from tinyllm_qwen.layer_builder import LayerBuilder
from tinyllm_qwen.partition.groups import ParallelGroups
from tinyllm_qwen.partition.partition import Partition
from tinyllm_qwen.sampling.best_tokens import BestTokens, check_num_best

AnyCache = TypeVar("AnyCache", bound=LayerCache)


class Qwen:
    """A language model: an embedding, a stack of decoder layers, a final norm and a head.

    Attributes:
        config: the architecture.
        ops: the implementation of the maths.
        groups: the processes that share the model, and the partition of each process.
        embed_tokens: the embedding.
        layers: the decoder layers of this process.
        stack: the stack of `layers`, made for `ops`.
        norm: the final norm.
        lm_head: the weight of the output head, `V E`; None if the embedding is the head.
        draft_head: the draft head; None unless the weights include it. Its cache follows the caches
            of the layers in the lists of `make_caches` and `make_pages`.
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
                have the names of MLX. Joint projections are separate; see `split_projections`. A
                `Backend` may have prepared the weights.
            ops: the implementation of the maths, or a `Backend`.
            groups: the processes that share the model; None for one process.

        Raises:
            KeyError: if a weight is missing.
            ValueError: if a weight has a wrong shape. `tinyllm_qwen.load` checks the weights
                before, and explains errors.
        """
        groups = ParallelGroups.single(config) if groups is None else groups
        builder = LayerBuilder(config, weights, groups, ops)
        self.config, self.ops, self.groups = config, ops, groups
        self.embed_tokens = builder.embedding()
        self.layers = tuple(builder.decoder_layer(index) for index in groups.partition.layers)
        self.stack = make_stack(self.layers, ops)
        self.norm = builder.norm("norm")
        self.lm_head = None if config.tie_word_embeddings else weights["lm_head.weight"]
        self.draft_head = DraftHead(builder) if "mtp.fc.weight" in weights else None

    def __call__(
        self,
        tokens: Integer[mx.array, "B L"],
        caches: Sequence[LayerCache] | None = None,
        *,
        batch: Batch | None = None,
        last: int | None = None,
        indices: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows n V"]:
        """Return the logits of the next token after each new token, or after some new tokens.

        Args:
            tokens: ids of L new tokens of each row.
            caches: one cache per layer, and one for the draft head if the model has one, from
                `make_caches` or `make_pages`. The new tokens are appended. Without caches, the new
                tokens are whole texts.
            batch: the layout of the pass. Unless given, the new tokens follow the tokens in the
                caches.
            last: n, the number of last positions to compute logits for; all L unless given.
            indices: the tokens to compute logits for, counted row after row. Each is a row of the
                result, `rows 1 V`, so that its logits have the bits that they have alone.

        Raises:
            ValueError: if the number of caches is not the number of layers, `last` is not in 1..L,
                an index does not exist, or both `last` and `indices` are given.
        """
        check_selection(tokens, last, indices)
        caches = self.make_caches() if caches is None else caches
        if batch is None:
            batch = batch_after(self.layer_caches(caches), *tokens.shape)
        return self.logits(self.hidden(tokens, batch, caches), last=last, indices=indices)

    def hidden(
        self, tokens: Integer[mx.array, "B L"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """Return the output of the last layer for each new token, before the final norm.

        The arguments are as in `__call__`.
        """
        # In float formats, a scale is one byte and determines no dtype, so the embedding returns
        # float32.
        pipeline = self.groups.pipeline
        h = pipeline.recv(self.embed_tokens(tokens).astype(self.dtype))
        h = self.stack(h, batch, self.layer_caches(caches))
        return pipeline.broadcast_from_last_rank(pipeline.send(h))

    def draft(
        self,
        tokens: Integer[mx.array, "B L"],
        normed_hidden: Float[mx.array, "B L E"],
        batch: Batch,
        caches: Sequence[LayerCache],
    ) -> Float[mx.array, "B L E"]:
        """Return the output of the draft head, for `project` and for the next draft token.

        Args:
            tokens: the token after each position.
            normed_hidden: the hidden state of each position after the final norm, or the output of
                this method for that position; see `DraftHead`.
            batch: the layout of the positions.
            caches: the caches of the model. Only the last cache is used and changed.

        Raises:
            ValueError: if the model has no draft head.
        """
        if self.draft_head is None:
            raise ValueError(
                "draft_head: expected one, got None: load the model with draft_head=True"
            )
        embedded = self.embed_tokens(tokens).astype(self.dtype)
        return self.draft_head(embedded, normed_hidden, batch, caches[-1])

    def layer_caches(self, caches: Sequence[AnyCache]) -> Sequence[AnyCache]:
        """Return the caches of the decoder layers, without that of the draft head."""
        return caches if self.draft_head is None else caches[:-1]

    def logits(
        self,
        h: Float[mx.array, "B L E"],
        *,
        last: int | None = None,
        indices: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows n V"]:
        """Return the logits of the next token, from the output of the last layer.

        `last` and `indices` are as in `__call__`.
        """
        logits = self._local_logits(_selected(h, last, indices))
        return self.groups.world.all_gather_features(logits, self.config.vocab_size)

    def project(self, h: Float[mx.array, "B L E"]) -> Float[mx.array, "B L local"]:
        """Multiply normalized hidden states by this process's rows of the output head.

        The draft head has a norm of its own, so its output is normalized already.
        """
        if self.lm_head is None:
            return self.embed_tokens.as_linear(h)
        return self.ops.linear(h, self.lm_head)

    def best_tokens(
        self,
        tokens: Integer[mx.array, "B L"],
        batch: Batch,
        caches: Sequence[LayerCache],
        k: int,
        *,
        indices: Sequence[int] | None = None,
    ) -> BestTokens:
        """Return the k most likely next tokens after some tokens.

        Processes that share the vocabulary exchange their k best tokens instead of all logits.

        Args:
            tokens: see `__call__`.
            batch: see `__call__`.
            caches: see `__call__`.
            k: the number of tokens. The result has min(k, P) tokens of each process, where P is
                the largest number of tokens that a process has.
            indices: the tokens, as in `__call__`; the last token of each row unless given.

        Raises:
            ValueError: if k is not in 1..V, or an index does not exist.
        """
        check_num_best(k, self.config.vocab_size)
        last = 1 if indices is None else None
        check_selection(tokens, last, indices)
        h = _selected(self.hidden(tokens, batch, caches), last, indices)
        logits = self._local_logits(h)[:, 0]
        world, first = self.groups.world, self.groups.partition.vocabulary.start
        missing = -(-self.config.vocab_size // world.size) - logits.shape[-1]
        if missing:  # the last rank may have fewer than k tokens, but all ranks exchange k
            logits = mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
        return BestTokens.of(logits, min(k, logits.shape[-1]), first, self.ops).gathered(world)

    def make_caches(
        self, *, kv_bits: int | None = None, max_size: int | None = None
    ) -> list[SequenceCache]:
        """Make empty caches for one sequence; see `tinyllm_qwen.caches.make_caches`."""
        return make_caches(
            self.config,
            self.groups.partition,
            kv_bits=kv_bits,
            max_size=max_size,
            draft_layers=self._num_draft_layers,
        )

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None, state_slots: int = 0
    ) -> list[PagedCache | RecurrentPool]:
        """Allocate pages and slots of many sequences; see `tinyllm_qwen.caches.make_pages`."""
        caches = self._pages(self.groups.partition, count, page_size, kv_bits, state_slots)
        mx.eval(cache_arrays(caches))
        return caches

    def copy_pages(self, caches: Sequence[LayerCache], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages in all attention layers, from the first page of a pair to the second."""
        for cache in caches:
            if isinstance(cache, PagedCache):
                cache.copy(pairs)

    def page_bytes(self, page_size: int, *, kv_bits: int | None = None) -> int:
        """Return the size of one page in all layers, in bytes: the largest of all processes."""
        partitions = self.groups.partitions
        return max(_nbytes(self._pages(part, 1, page_size, kv_bits)) for part in partitions)

    def state_bytes(self) -> int:
        """Return the bytes of one state in all recurrent layers: the largest of all processes."""
        partitions = self.groups.partitions
        return max(_nbytes(self._pages(part, 0, 1, state_slots=1)) for part in partitions)

    @property
    def num_caches(self) -> int:
        """The number of caches: one for each layer in this process, and one for the draft head."""
        return len(self.layers) + self._num_draft_layers

    @property
    def num_ranks(self) -> int:
        """The number of processes that share the model."""
        return self.groups.world.size

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of activations, which is the dtype of the norms."""
        return self.norm.weight.dtype

    @cached_property
    def nbytes(self) -> int:
        """The size of the weights in this process in bytes, in packed form."""
        return sum(weight.nbytes for weight in self.weights())

    def weights(self) -> list[Weight]:
        """List the weights in this process, in the order of computation."""
        drafts = [] if self.draft_head is None else self.draft_head.weights()
        return weights_of([self.embed_tokens, self.layers, self.norm, self.lm_head, drafts])

    @property
    def _num_draft_layers(self) -> int:
        """The number of layers of the draft head: 0 or 1."""
        return 0 if self.draft_head is None else 1

    def _pages(
        self,
        part: Partition,
        count: int,
        page_size: int,
        kv_bits: int | None = None,
        state_slots: int = 0,
    ) -> list[PagedCache | RecurrentPool]:
        """Make the pages and slots of a process, whose memory is not allocated yet."""
        return make_pages(
            self.config,
            part,
            self.dtype,
            count,
            page_size,
            kv_bits=kv_bits,
            state_slots=state_slots,
            draft_layers=self._num_draft_layers,
            zeros=self.ops.zeros if isinstance(self.ops, Backend) else mx.zeros,
        )

    def _local_logits(self, h: Float[mx.array, "B L E"]) -> Float[mx.array, "B L local"]:
        """Return the logits of the tokens whose rows of the head this process has."""
        return self.project(self.norm(h))


def _nbytes(caches: Sequence[LayerCache]) -> int:
    return sum(cache.nbytes for cache in caches)


def check_selection(
    tokens: Integer[mx.array, "B L"], last: int | None, indices: Sequence[int] | None
) -> None:
    """Raise ValueError unless the tokens have `last` positions or `indices`, not both."""
    require_array("tokens", tokens)
    require_rank("tokens", tokens, "B L")
    length, count = tokens.shape[1], tokens.size
    if last is not None and indices is not None:
        raise ValueError(f"last: expected None with indices, got {last}: leave one of both out")
    if last is not None and not 1 <= last <= length:
        raise ValueError(f"last: expected 1 to {length} positions, got {last}")
    if indices is not None and not all(0 <= index < count for index in indices):
        raise ValueError(f"indices: expected numbers from 0 to {count - 1}, got {list(indices)}")


def _selected(
    h: Float[mx.array, "B L E"], last: int | None, indices: Sequence[int] | None
) -> Float[mx.array, "rows n E"]:
    """Return the `last` positions of each row, or the tokens `indices` as rows of one token."""
    if indices is None:
        return h if last is None or last == h.shape[1] else h[:, -last:]
    rows = h.reshape(-1, 1, h.shape[-1])
    if list(indices) == list(range(len(rows))):
        return rows
    return rows[mx.array(list(indices), dtype=mx.int32)]
