"""Passes of the model over the tokens of many requests, and the choice of their next tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import cast

import mlx.core as mx
from jaxtyping import Bool, Float
from tinyllm_layers import PagedCache
from tinyllm_ops import PagedTokens
from tinyllm_qwen import Qwen
from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.candidates import Candidates
from tinyllm_qwen.sampling.sample import Sample
from tinyllm_qwen.sampling.sampler import choose, with_logprobs

from tinyllm_engine.output import SampledToken, TokenLogprob
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Chunk

NOWHERE = -1
"""The slot of a token whose key and value are not kept."""

Scores = Float[mx.array, "choices V"] | BestTokens
"""The logits of each choice, or its best tokens where they decide it."""


class Runner:
    """Computes the chunks of a step. Holds tensors, and no policy.

    Prompts go through the model as one row of T tokens, `1 T`, decoded tokens as T rows of one,
    `T 1`. That is more than a shape: kernels compute the first kind in tiles of many tokens, the
    second one a row at a time, and in either kind a token's result does not depend on the tokens
    beside it. A request is prefilled and decoded at the same positions whatever the other requests
    of the step are, so it gets the same answer. The weights are read twice in a step that does
    both: that is nothing beside the arithmetic of a prompt.
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
        """Write the keys and values of prompt chunks to their pages."""
        runs = [(chunk, _prefill_start(chunk)) for chunk in chunks]
        places = [(chunk, at) for chunk, start in runs for at in range(start, chunk.stop)]
        tokens = [chunk.request.tokens[at] for chunk, at in places]
        positions = [at for _, at in places]
        slots = [self._slot(chunk, at) if at >= chunk.start else NOWHERE for chunk, at in places]
        if len(tokens) == 1:  # a prompt's axis is longer than one: add a token of no request
            tokens, positions, slots = tokens * 2, positions * 2, [*slots, NOWHERE]
        starts = [0, *accumulate(chunk.stop - start for chunk, start in runs)]
        where = PagedTokens(
            _table([chunk.request.pages for chunk in chunks]),
            _ints(starts),
            _ints([chunk.stop for chunk in chunks]),
            _ints(positions),
            _ints(slots),
        )
        self._hidden(_ints(tokens)[None], where)
        self._wait()

    def decode(self, chunks: Sequence[Chunk]) -> Scores | None:
        """Write the keys and values of decoded tokens, and score the tokens that may follow.

        Only the scores wait for the device, and only when they are read.

        Returns:
            A row for each choice of each chunk, in their order; None if no chunk chooses.
        """
        if not chunks:
            return None
        choosing = [chunk.request for chunk in chunks if chunk.choices]
        # Ranks that share the vocabulary exchange a few tokens sooner than all logits.
        count = None if self._model.share is None else _num_candidates(choosing)
        h = self._decoded(chunks)
        if not choosing:
            self._wait()
            return None
        if count is None:
            return self._model.head(h)[:, 0]
        return self._model.best(h, count).at(slice(None), 0)

    def sample(self, chunks: Sequence[Chunk], scores: Scores | None) -> list[list[SampledToken]]:
        """Choose the tokens of each chunk that chooses, and wait for them.

        Args:
            chunks: the chunks that were decoded.
            scores: the result of `decode`.
        """
        if scores is None:
            return []
        requests = [chunk.request for chunk in chunks if chunk.choices]
        masks = _masks(requests, scores) if any(each.constraint for each in requests) else None
        samplers = [state for each in requests for state in each.sampler.ahead(each.draft)]
        if isinstance(scores, BestTokens):
            candidates = Candidates(scores.tokens, scores.scores)
        else:
            candidates = Candidates(None, scores)
        tokens = choose(samplers, candidates, masks)
        rows = [each for each in requests for _ in range(1 + len(each.draft))]
        if any(each.wants_logprobs for each in requests):
            sampled = self._reported(rows, tokens, scores)
        else:
            mx.eval(tokens)
            sampled = [SampledToken(token) for token in _integers(tokens)]
        following = iter(sampled)
        return [[next(following) for _ in range(1 + len(each.draft))] for each in requests]

    def _reported(
        self, rows: Sequence[RequestState], tokens: mx.array, scores: Scores
    ) -> list[SampledToken]:
        """Add the log-probabilities that the requests of the rows ask for."""
        groups: dict[int, list[int]] = defaultdict(list)
        for row, request in enumerate(rows):
            if request.wants_logprobs:
                groups[request.request.sampling.top_logprobs].append(row)
        samples = {}
        for top, group in groups.items():
            index = mx.array(group)
            own = scores.at(index) if isinstance(scores, BestTokens) else scores[index]
            samples[top] = with_logprobs(tokens[index], own, top, self._model.ops)
        mx.eval(tokens, *(array for sample in samples.values() for array in _arrays(sample)))
        sampled = [SampledToken(token) for token in _integers(tokens)]
        for top, group in groups.items():
            for row, reported in zip(group, _on_host(samples[top]), strict=True):
                sampled[row] = reported
        return sampled

    def _decoded(self, chunks: Sequence[Chunk]) -> Float[mx.array, "choices 1 E"]:
        """Compute decoded tokens; return the output of the last layer for those that choose."""
        places = [(chunk, at) for chunk in chunks for at in range(chunk.start, chunk.stop)]
        where = PagedTokens(
            _table([chunk.request.pages for chunk, _ in places]),
            _ints(range(len(places) + 1)),
            _ints([at + 1 for _, at in places]),
            _ints([at for _, at in places]),
            _ints([self._slot(chunk, at) for chunk, at in places]),
        )
        tokens = _ints([token for chunk in chunks for token in chunk.tokens])[:, None]
        rows = [row for row, (chunk, at) in enumerate(places) if at >= chunk.stop - chunk.choices]
        return self._hidden(tokens, where, None if len(rows) == len(places) else rows)

    def _hidden(
        self, tokens: mx.array, where: PagedTokens, rows: Sequence[int] | None = None
    ) -> mx.array:
        for cache in self._caches:
            cache.tokens = where
        return self._model.hidden(tokens, self._caches, rows=rows)

    def _slot(self, chunk: Chunk, at: int) -> int:
        """Return the slot to which the key and value of a position are written."""
        page, offset = divmod(at, self._page_size)
        return chunk.request.pages[page] * self._page_size + offset

    def _wait(self) -> None:
        mx.eval([array for cache in self._caches for array in cache.arrays])


def _prefill_start(chunk: Chunk) -> int:
    """Return one position before a single token, so that it is computed as prompts are."""
    return chunk.start - (chunk.stop - chunk.start == 1 and chunk.start > 0)


def _num_candidates(requests: Sequence[RequestState]) -> int | None:
    """Return the number of best tokens that decide all choices; None if every score counts."""
    counts = []
    for request in requests:
        count = None if request.constraint is not None else request.sampler.num_candidates
        if count is None:
            return None
        counts.append(count)
    return max(counts, default=None)


def _masks(requests: Sequence[RequestState], scores: Scores) -> list[Bool[mx.array, "V"] | None]:
    """Return the tokens that grammars allow, for each choice."""
    mx.async_eval(scores)  # the device begins while the host computes masks
    masks: list[Bool[mx.array, "V"] | None] = []
    for request in requests:
        if request.constraint is None:
            masks += [None] * (1 + len(request.draft))
        else:
            masks += request.constraint.masks(request.draft)
    return masks


def _arrays(sample: Sample) -> list[mx.array]:
    fields = (sample.logprob, sample.top_tokens, sample.top_logprobs)
    return [array for array in fields if array is not None]


def _on_host(sample: Sample) -> list[SampledToken]:
    """Return the rows of a sample `R` as numbers."""
    tokens, logprobs = _integers(sample.token), _floats(sample.logprob)
    if sample.top_tokens is None or sample.top_logprobs is None:
        return list(map(SampledToken, tokens, logprobs))
    tops = [
        tuple(map(TokenLogprob, ids, numbers))
        for ids, numbers in zip(
            cast("list[list[int]]", sample.top_tokens.tolist()),
            cast("list[list[float]]", sample.top_logprobs.tolist()),
            strict=True,
        )
    ]
    return list(map(SampledToken, tokens, logprobs, tops))


def _integers(x: mx.array) -> list[int]:
    return cast("list[int]", x.tolist())


def _floats(x: mx.array) -> list[float]:
    return cast("list[float]", x.tolist())


def _ints(numbers: Iterable[int]) -> mx.array:
    return mx.array(list(numbers), dtype=mx.int32)


def _table(rows: Sequence[Sequence[int]]) -> mx.array:
    """Return block tables of different lengths as one array, padded with page 0."""
    width = max(map(len, rows))
    return mx.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=mx.int32)
