"""Forward passes over the tokens of many requests, and the choice of the next tokens."""

from collections import defaultdict
from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Bool, Float, Integer
from tinyllm_layers import Batch, RecurrentPool
from tinyllm_ops import PageTable, StateTable
from tinyllm_qwen.caches import cache_arrays
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.sampler import Sample, choose, with_logprobs
from tinyllm_qwen.tolist import float_rows, floats, int_rows, ints

from tinyllm_engine.head_runner import HeadRunner
from tinyllm_engine.kv.page_pool import PooledCache
from tinyllm_engine.output import SampledToken, TokenLogprob
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Chunk

Scores = Float[mx.array, "samples V"] | BestTokens
"""One row for each token to sample: all logits, or the best tokens if they are sufficient."""


class Runner:
    """Computes the chunks of a step, which the scheduler has chosen.

    The prompt tokens of a step form one row, `1 T`, and the decoded tokens form T rows, `T 1`. The
    two passes use different kernels: prompts are computed in tiles of many tokens, decoded tokens
    one row at a time. In both, the result of a token does not depend on the other requests of the
    batch. All tokens of a prompt are prefilled and all others are decoded, in any batch, so a
    request gets the same answer. A step with both passes reads the weights twice, which costs
    little in comparison with the arithmetic of a prompt.

    Attributes:
        num_pages: the number of pages.
        page_size: the number of tokens in a page.
    """

    def __init__(
        self,
        model: LanguageModel,
        caches: Sequence[PooledCache],
        num_pages: int,
        page_size: int,
        num_slots: int = 0,
        head: HeadRunner | None = None,
    ) -> None:
        """Make a runner of a model and its pages.

        Args:
            model: the model.
            caches: the pages or slots of each layer.
            num_pages: the number of pages.
            page_size: the number of tokens in a page.
            num_slots: the number of slots of recurrent state; 0 without recurrent layers.
            head: the runner of the model's draft head, which needs the hidden states of all tokens;
                None for a model without one.
        """
        self._model = model
        self._caches = caches
        self.num_pages = num_pages
        self.page_size = page_size
        self._num_slots = num_slots
        self._head = head

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, from the first page of each pair to the second.

        Models with recurrent layers need no copies, because they share only prefixes of whole pages
        that end before the last token of the prompt.
        """
        if pairs:
            self._model.copy_pages(self._caches, pairs)

    def prefill(self, chunks: Sequence[Chunk]) -> Scores | None:
        """Write the keys and values of prompt chunks to their pages, and save recurrent states.

        The call waits for the device, and sets the log-probabilities of prompts.

        Returns:
            A row of scores for each sample of each chunk, in order; None if no chunk has samples.
        """
        if not chunks:
            return None
        counts = [chunk.num_scores for chunk in chunks]
        scores = self._scores(chunks, *self._prompts(chunks), counts)
        self._wait(scores)
        return self._set_prompt_logprobs(chunks, scores)

    def embed(self, chunks: Sequence[Chunk]) -> dict[RequestState, list[float]]:
        """Compute chunks of embeddings like chunks of prompts.

        Returns:
            The embedding of each prompt that ends in a chunk.
        """
        if not chunks:
            return {}
        tokens, batch = self._prompts(chunks)
        h = self._hidden(chunks, tokens, batch)
        last = {}
        stop = 0
        for chunk in chunks:
            stop += len(chunk.tokens)
            if chunk.stop == chunk.request.num_prompt_tokens:
                last[chunk.request] = stop - 1
        if not last:
            self._wait()
            return {}
        normed = self._model.norm(h[0, mx.array(list(last.values()))]).astype(mx.float32)
        vectors = normed / mx.linalg.norm(normed, axis=-1, keepdims=True)
        mx.eval(vectors)
        self._wait()
        return dict(zip(last, float_rows(vectors), strict=True))

    def decode(self, chunks: Sequence[Chunk]) -> Scores | None:
        """Write the keys and values of decoded tokens, and score the tokens that may follow.

        Each token is a sequence of its own in the page table. Recurrent layers see the tokens of a
        chunk as one sequence.

        If a chunk has samples, the call builds a graph and does not wait for the device.

        Returns:
            A row of scores for each sample of each chunk, in order; None if no chunk has samples.
        """
        if not chunks:
            return None
        positions = [(chunk, at) for chunk in chunks for at in range(chunk.start, chunk.stop)]
        page_table = self._page_table(
            [(chunk.request.block_table, at, at + 1) for chunk, at in positions]
        )
        batch = Batch.paged(page_table, "decode", self._state_table(chunks))
        tokens = mx.array([[token] for chunk in chunks for token in chunk.tokens], dtype=mx.int32)
        scores = self._scores(chunks, tokens, batch, [chunk.num_samples for chunk in chunks])
        if scores is None:
            self._wait()
        return scores

    def sample(self, chunks: Sequence[Chunk], scores: Scores | None) -> list[list[SampledToken]]:
        """Choose the next tokens of each chunk with samples, and wait for the result.

        Args:
            chunks: the chunks of a pass.
            scores: the result of `prefill` or `decode` for these chunks.

        Returns:
            One list of `num_samples` tokens for each chunk with samples.
        """
        if scores is None:
            return []
        chunks = [chunk for chunk in chunks if chunk.num_samples]
        rows = [chunk.request for chunk in chunks for _ in range(chunk.num_samples)]
        masks = _masks(chunks, scores) if any(each.constraint for each in rows) else None
        samplers = [
            sampler
            for chunk in chunks
            for sampler in chunk.request.sampler.ahead(chunk.request.draft_tokens)
        ]
        tokens = choose(samplers, scores, masks)
        if any(each.wants_logprobs for each in rows):
            sampled = self._reported(rows, tokens, scores)
        else:
            mx.eval(tokens)
            sampled = [SampledToken(token) for token in ints(tokens)]
        mx.async_eval(self._state_arrays)
        samples = iter(sampled)
        return [[next(samples) for _ in range(chunk.num_samples)] for chunk in chunks]

    def _prompts(self, chunks: Sequence[Chunk]) -> tuple[Integer[mx.array, "1 T"], Batch]:
        """Return the tokens and the batch of a pass over chunks of prompts."""
        page_table = self._page_table(
            [(chunk.request.block_table, chunk.start, chunk.stop) for chunk in chunks]
        )
        tokens = mx.array([[token for chunk in chunks for token in chunk.tokens]], dtype=mx.int32)
        return tokens, Batch.paged(page_table, "prefill", self._state_table(chunks))

    def _scores(
        self,
        chunks: Sequence[Chunk],
        tokens: Integer[mx.array, "B L"],
        batch: Batch,
        counts: Sequence[int],
    ) -> Float[mx.array, "rows V"] | BestTokens | None:
        """Build the graph of a pass, with the scores after the last `counts` tokens of each chunk.

        The result is None if no scores are needed. The head sees each token as a row of one token
        in both phases. So the scores of a sample do not depend on the number of samples.
        """
        indices, stop = list[int](), 0
        for chunk, count in zip(chunks, counts, strict=True):
            stop += len(chunk.tokens)
            indices += range(stop - count, stop)
        if not indices:
            self._hidden(chunks, tokens, batch)
            return None
        if self._head is not None:
            h = self._hidden(chunks, tokens, batch)
            return self._head.model.logits(h, indices=indices)[:, 0]
        # Ranks that share the vocabulary exchange a few best tokens faster than all logits.
        best = _num_best(chunks) if self._model.num_ranks > 1 else None
        if best is None:
            return self._model(tokens, self._caches, batch=batch, indices=indices)[:, 0]
        return self._model.best_tokens(tokens, batch, self._caches, best, indices=indices)

    def _hidden(
        self, chunks: Sequence[Chunk], tokens: Integer[mx.array, "B L"], batch: Batch
    ) -> Float[mx.array, "B L E"]:
        """Build the graph of a pass up to the last layer, for the draft head too."""
        h = self._model.hidden(tokens, batch, self._caches)
        if self._head is not None:
            self._head.observe_pass(chunks, h, batch)
        return h

    def _set_prompt_logprobs(
        self, chunks: Sequence[Chunk], scores: Float[mx.array, "rows V"] | BestTokens | None
    ) -> Scores | None:
        """Set `prompt_logprobs` of the requests that ask for it.

        Args:
            chunks: the chunks of a prefill pass.
            scores: `num_scores` rows of each chunk.

        Returns:
            The rows of the samples; None if there are none.
        """
        if scores is None or not any(chunk.is_scored for chunk in chunks):
            return scores
        assert not isinstance(scores, BestTokens)
        samples, stop = list[int](), 0
        for chunk in chunks:
            start, stop = stop, stop + chunk.num_scores
            samples += range(stop - chunk.num_samples, stop)
            # The last token of a prompt has no next one.
            following = chunk.request.prompt[chunk.start + 1 : chunk.stop + 1]
            if chunk.is_scored and following:
                rows = [chunk.request] * len(following)
                tokens = mx.array(list(following))
                reported = self._reported(rows, tokens, scores[start : start + len(following)])
                chunk.request.prompt_logprobs[chunk.start + 1 : chunk.stop + 1] = reported
        return scores[mx.array(samples)] if samples else None

    def _reported(
        self, rows: Sequence[RequestState], tokens: mx.array, scores: Scores
    ) -> list[SampledToken]:
        """Return the tokens with the log-probabilities that the requests ask for.

        Args:
            rows: the request of each sample.
            tokens: the chosen token of each sample.
            scores: the scores of each sample.
        """
        groups: dict[int, list[int]] = defaultdict(list)
        for row, request in enumerate(rows):
            if request.wants_logprobs:
                groups[request.top_logprobs].append(row)
        samples = {}
        for top, group in groups.items():
            index = mx.array(group)
            samples[top] = with_logprobs(tokens[index], scores[index], top, self._model.ops)
        mx.eval(tokens, [sample.arrays for sample in samples.values()])
        sampled = [SampledToken(token) for token in ints(tokens)]
        for top, group in groups.items():
            for row, reported in zip(group, _on_host(samples[top]), strict=True):
                sampled[row] = reported
        return sampled

    def _page_table(self, chunks: Sequence[tuple[Sequence[int], int, int]]) -> PageTable:
        return PageTable.of(chunks, num_pages=self.num_pages, page_size=self.page_size)

    def _state_table(self, chunks: Sequence[Chunk]) -> StateTable | None:
        """Return the slots that each sequence loads and saves; None without recurrent layers."""
        if not self._num_slots:
            return None
        sequences = [
            (
                chunk.load,
                len(chunk.tokens),
                {length - chunk.start: slot for length, slot in chunk.saves.items()},
            )
            for chunk in chunks
        ]
        return StateTable.of(sequences, num_slots=self._num_slots)

    @property
    def _state_arrays(self) -> list[mx.array]:
        """The arrays of recurrent layers, to evaluate after the rest of a pass.

        MLX writes the saved states into these arrays in place only if no running kernel reads them.
        In the evaluation of the kernels that load states, it would copy all slots. (Kernels of the
        CPU write in place, and this evaluation finds their states.)
        """
        pools = (cache for cache in self._caches if isinstance(cache, RecurrentPool))
        return [array for pool in pools for array in pool.arrays]

    def _wait(self, scores: Scores | None = None) -> None:
        results = scores.arrays if isinstance(scores, BestTokens) else [scores]
        pages = (each for each in self._caches if not isinstance(each, RecurrentPool))
        mx.eval(results, cache_arrays(pages))
        mx.eval(self._state_arrays)


def _num_best(chunks: Sequence[Chunk]) -> int | None:
    """Return how many best tokens are sufficient for all samples; None if all scores are needed."""
    if any(chunk.is_scored for chunk in chunks):
        return None
    requests = [chunk.request for chunk in chunks if chunk.num_samples]
    counts = [
        None if request.constraint is not None else request.sampler.num_best for request in requests
    ]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _masks(chunks: Sequence[Chunk], scores: Scores) -> list[Bool[mx.array, "V"] | None]:
    """Return the mask of allowed tokens for each sample; None for requests without a grammar."""
    mx.async_eval(scores)  # start the device before the host computes masks
    masks: list[Bool[mx.array, "V"] | None] = []
    for chunk in chunks:
        constraint = chunk.request.constraint
        if constraint is None:
            masks += [None] * chunk.num_samples
        else:
            masks += constraint.masks(chunk.request.draft_tokens)
    return masks


def _on_host(sample: Sample) -> list[SampledToken]:
    """Convert the R rows of a sample to Python numbers."""
    tokens, logprobs = ints(sample.token), floats(sample.logprob)
    if sample.top_tokens is None or sample.top_logprobs is None:
        return list(map(SampledToken, tokens, logprobs))
    tops = [
        tuple(map(TokenLogprob, ids, numbers))
        for ids, numbers in zip(
            int_rows(sample.top_tokens), float_rows(sample.top_logprobs), strict=True
        )
    ]
    return list(map(SampledToken, tokens, logprobs, tops))
