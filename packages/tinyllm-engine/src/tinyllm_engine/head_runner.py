"""Passes of the draft head of a model, over the hidden states of the model's own passes."""

from collections.abc import Mapping, Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch
from tinyllm_ops import PageTable
from tinyllm_qwen import Qwen
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.tolist import ints

from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Chunk

HeadOutputs = Mapping[RequestState, Float[mx.array, "1 1 E"]]
"""The output of the head at the last computed position of each request."""

_Positions = Sequence[tuple[RequestState, int]]
"""Pairs of a request and a position in its text."""


class HeadRunner:
    """Computes the draft head of a model; see `DraftHead`.

    The keys and values of the head are in the pages of the model. Position t of a page depends on
    the hidden state after t and on token t + 1. Prompts are computed with the model, chunk by
    chunk. The last token of a prompt and decoded tokens follow when the sampler has chosen the
    tokens after them: `observe_pass` keeps their hidden states until the next `compute_accepted`.

    Requests that share a page of a prefix may differ in the token after the page. The last position
    of the page then belongs to the first request. That changes the acceptance, and no token.

    Attributes:
        model: the model.
    """

    def __init__(self, model: Qwen, pool: PagePool, page_size: int) -> None:
        """Make a runner.

        Args:
            model: the model, with a draft head.
            pool: the pages of the model.
            page_size: the number of tokens in a page.
        """
        self.model = model
        self._pool = pool
        self._page_size = page_size
        self.reset()

    def reset(self) -> None:
        """Drop the hidden states, whose requests have lost their pages."""
        # Of the last step: a request, the first of its positions, and the number of positions.
        self._kept: list[tuple[RequestState, int, int]] = []
        self._hidden: list[Float[mx.array, "n 1 E"]] = []  # of all these positions

    def observe_pass(self, chunks: Sequence[Chunk], h: mx.array, batch: Batch) -> None:
        """Compute the head for prompt tokens of a pass; keep the hidden states of other tokens.

        Args:
            chunks: the chunks of a pass, all of prompts or all decoded.
            h: the output of the last layer for their tokens: `1 T E` of prompts, `T 1 E` of decoded
                tokens.
            batch: the layout of the pass.
        """
        stop, ends = 0, list[int]()
        for chunk in chunks:
            stop += len(chunk.tokens)
            if batch.phase == "decode":
                self._kept.append((chunk.request, chunk.start, len(chunk.tokens)))
            elif chunk.num_samples:
                self._kept.append((chunk.request, chunk.stop - 1, 1))
                ends.append(stop - 1)
        if batch.phase == "decode":
            self._hidden.append(h)
            return
        if ends:
            self._hidden.append(h[0, mx.array(ends)][:, None])
        assert batch.page_table is not None
        next_tokens = [token for chunk in chunks for token in _next_tokens(chunk)]
        prompt_batch = Batch.paged(batch.page_table, "prefill")
        ids = mx.array([next_tokens], dtype=mx.int32)
        self.model.draft(ids, self.model.norm(h), prompt_batch, self._pool.caches)

    def compute_accepted(self) -> HeadOutputs:
        """Compute the head for the accepted tokens of the last step; return its last outputs."""
        kept, hidden, row = self._kept, self._hidden, 0
        rows: list[int] = []
        positions: list[tuple[RequestState, int]] = []
        last: dict[RequestState, int] = {}
        for request, start, count in kept:
            # A request that has ended or was preempted has no computed tokens.
            if request.num_computed_tokens > start:
                positions += [(request, at) for at in range(start, request.num_computed_tokens)]
                rows += range(row, row + request.num_computed_tokens - start)
                last[request] = len(rows) - 1
            row += count
        self.reset()
        if not rows:
            return {}
        h = self.model.norm(mx.concatenate(hidden)[mx.array(rows, dtype=mx.int32)])
        h = self._decode([request.tokens[at + 1] for request, at in positions], h, positions)
        return {request: h[row : row + 1] for request, row in last.items()}

    def best_tokens(self, outputs: HeadOutputs, vocab_size: int) -> list[int]:
        """Return the most likely next token of each request, among the first `vocab_size`."""
        h = mx.concatenate(list(outputs.values()))
        logits = self.model.project(h)[:, 0, :vocab_size]
        return ints(mx.argmax(logits, axis=-1))

    def compute_drafts(self, outputs: HeadOutputs) -> HeadOutputs:
        """Compute the head for the last draft token of each request, from its own output."""
        if not outputs:
            return {}
        positions = [
            (each, each.num_computed_tokens + len(each.draft_tokens) - 1) for each in outputs
        ]
        h = mx.concatenate(list(outputs.values()))
        h = self._decode([request.draft_tokens[-1] for request in outputs], h, positions)
        return {request: h[row : row + 1] for row, request in enumerate(outputs)}

    def start(self) -> None:
        """Start the device on the passes so far, and do not wait for it."""
        mx.async_eval(self._pool.caches[-1].arrays)

    def _decode(
        self, next_tokens: Sequence[int], h: Float[mx.array, "T 1 E"], positions: _Positions
    ) -> Float[mx.array, "T 1 E"]:
        """Compute the head at some positions, given the token after each and its hidden state."""
        table = PageTable.of(
            [(request.block_table, at, at + 1) for request, at in positions],
            num_pages=self._pool.num_pages,
            page_size=self._page_size,
        )
        ids = mx.array([[token] for token in next_tokens], dtype=mx.int32)
        batch = Batch.paged(table, "decode")
        return self.model.draft(ids, h, batch, self._pool.caches)


def make_head_runner(model: LanguageModel, pool: PagePool, page_size: int) -> HeadRunner | None:
    """Return the runner of the draft head of a model; None for a model without a draft head."""
    if isinstance(model, Qwen) and model.draft_head is not None:
        return HeadRunner(model, pool, page_size)
    return None


def _next_tokens(chunk: Chunk) -> list[int]:
    """Return the token after each token of a prompt chunk.

    The last token of a prompt has none yet, and stands for it.
    """
    tokens = chunk.request.tokens[chunk.start + 1 : chunk.stop + 1]
    return [*tokens, chunk.tokens[-1]] if len(tokens) < len(chunk.tokens) else tokens
