"""Passes of the model over the tokens of many sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import PagedCache
from tinyllm_ops import PagedTokens
from tinyllm_qwen import Qwen
from tinyllm_qwen.sampling.best_tokens import BestTokens

from tinyllm_engine.schedule.step import Chunk

NOWHERE = -1
"""The slot of a token whose key and value are not kept."""


class Runner:
    """Computes the chunks of a plan. Knows tensors, and nothing of policy.

    Prompts go through the model as one row of T tokens, `1 T`, tokens that are decoded as T rows of
    one, `T 1`. That is more than a shape: kernels compute the first kind in tiles of many tokens,
    the second one a row at a time, and in either kind a token's result is its own, whatever stands
    beside it. A request is prefilled and decoded at the same places whoever its neighbors are, so
    it gets the same answer. The weights are read twice in a step that does both: that is nothing
    beside the arithmetic of a prompt.
    """

    def __init__(self, model: Qwen, caches: Sequence[PagedCache]) -> None:
        """Compute with a model, on pages: one cache for each layer."""
        self._model = model
        self._caches = caches
        self._page_size = caches[0].keys.shape[-2]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, from the first of each pair to the second."""
        if pairs:
            self._model.copy_pages(self._caches, pairs)

    def prefill(self, chunks: Sequence[Chunk]) -> None:
        """Put chunks of prompts into their pages."""
        runs = [self._two_at_least(chunk) for chunk in chunks]
        places = [(chunk, at) for chunk, start in runs for at in range(start, chunk.stop)]
        tokens = [chunk.sequence.tokens[at] for chunk, at in places]
        positions = [at for _, at in places]
        slots = [self._slot(chunk, at) if at >= chunk.start else NOWHERE for chunk, at in places]
        if len(tokens) == 1:  # the axis of a prompt is longer than one: add a token of nobody
            tokens, positions, slots = tokens * 2, positions * 2, [*slots, NOWHERE]
        starts = [0, *accumulate(chunk.stop - start for chunk, start in runs)]
        where = PagedTokens(
            _table([chunk.sequence.pages for chunk in chunks]),
            _ints(starts),
            _ints([chunk.stop for chunk in chunks]),
            _ints(positions),
            _ints(slots),
        )
        self._pass(_ints(tokens)[None], where)
        mx.eval([array for cache in self._caches for array in cache.arrays])

    def decode(self, chunks: Sequence[Chunk]) -> Float[mx.array, "choices V"]:
        """Put tokens into their pages; the logits after each token that another one may follow.

        These are, of each chunk that chooses, the sequence's last token and its drafts. Nothing
        waits for the device.
        """
        h = self._decoded(chunks)
        if not len(h):
            mx.eval([array for cache in self._caches for array in cache.arrays])
            return mx.zeros((0, self._model.config.vocab_size))
        return self._model.head(h)[:, 0]

    def decode_best(self, chunks: Sequence[Chunk], k: int) -> BestTokens:
        """The same, of chunks of which at least one chooses; the k best tokens instead of all."""
        return self._model.best(self._decoded(chunks), k).at(slice(None), 0)

    def _decoded(self, chunks: Sequence[Chunk]) -> Float[mx.array, "choices 1 E"]:
        """Put tokens into their pages; what leaves the last block after those that choose."""
        places = [(chunk, at) for chunk in chunks for at in range(chunk.start, chunk.stop)]
        where = PagedTokens(
            _table([chunk.sequence.pages for chunk, _ in places]),
            _ints(range(len(places) + 1)),
            _ints([at + 1 for _, at in places]),
            _ints([at for _, at in places]),
            _ints([self._slot(chunk, at) for chunk, at in places]),
        )
        tokens = _ints([token for chunk in chunks for token in chunk.tokens])[:, None]
        choices = [
            row for row, (chunk, at) in enumerate(places) if at >= len(chunk.sequence.tokens) - 1
        ]
        return self._pass(tokens, where, choices)

    def _two_at_least(self, chunk: Chunk) -> tuple[Chunk, int]:
        """Where a run begins: one token earlier for a single one, to be computed as prompts are."""
        return chunk, chunk.start - (chunk.length == 1 and chunk.start > 0)

    def _slot(self, chunk: Chunk, at: int) -> int:
        """Where the key and value of a token are written."""
        page, place = divmod(at, self._page_size)
        return chunk.sequence.pages[page] * self._page_size + place

    def _pass(
        self, tokens: mx.array, where: PagedTokens, choices: Sequence[int] | None = None
    ) -> mx.array:
        """What leaves the last block: of the rows that are asked for, or of all."""
        for cache in self._caches:
            cache.tokens = where
        rows = None if choices is None or len(choices) == len(tokens) else choices
        return self._model.hidden(tokens, self._caches, rows=rows)


def _ints(numbers: Iterable[int]) -> mx.array:
    return mx.array(list(numbers), dtype=mx.int32)


def _table(rows: Sequence[Sequence[int]]) -> mx.array:
    """Block tables of different lengths as one array; what is past a table's end is not read."""
    width = max(map(len, rows))
    return mx.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=mx.int32)
