"""A scheduler without a model, and a memory that shows what each slot holds."""

import random
from collections.abc import Sequence

from tinyllm_ops import NO_STATE
from tinyllm_qwen import Sampler
from tinyllm_qwen.text.output import FinishReason, OutputProcessor

from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.schedule.state_slots import StateSlots
from tinyllm_engine.schedule.step import Chunk, Step
from tinyllm_engine.speculative.drafter import draft_limits

PAGE = 4
"""The number of tokens in a page of `SchedulerMemory`."""


class _NoText(OutputProcessor):
    """An output processor without a tokenizer: all text is empty, and no token ends the text."""

    def __init__(self) -> None:
        """Make the processor."""
        self._stops = self._stop_token = None

    def push(self, token: int, *, ended: bool) -> tuple[str, FinishReason | None]:
        return "", "length" if ended else None


def state_without_model(request: Request, arrival: int = 0) -> RequestState:
    """Return the state of a request for tests of policy, without a model and a tokenizer."""
    sampler = Sampler(request.sampling, vocab_size=1)
    return RequestState(request, arrival, request.max_tokens, sampler, _NoText())


class SchedulerMemory:
    """A scheduler without a model, and a memory that shows what each slot holds.

    A slot of a page holds all tokens of its text up to the token that was written to it, and a slot
    of recurrent state all tokens that led to the state. With recurrent state, prefilled tokens
    differ from decoded tokens, because their numbers may differ in the last bits.

    Attributes:
        block_manager: the allocation of pages.
        states: the slots of recurrent state; None without recurrent layers.
        scheduler: the scheduler.
        slots: the text by slot of a page.
        saved: the text by slot of recurrent state.
        arrivals: the number of requests so far.
        last: the latest step.
    """

    def __init__(
        self,
        num_pages: int,
        max_num_seqs: int = 4,
        *,
        states: int | None = None,
        snapshots: int = 0,
    ) -> None:
        """Make a scheduler with `num_pages` empty pages of `PAGE` tokens.

        Args:
            num_pages: the number of pages.
            max_num_seqs: the number of seats.
            states: the number of slots for recurrent states of requests; None for a model without
                recurrent layers.
            snapshots: the number of slots for snapshots.
        """
        self.block_manager = BlockManager(num_pages, PAGE)
        self.states = None if states is None else StateSlots(states, snapshots, PAGE)
        self.scheduler = Scheduler(self.block_manager, max_num_seqs, self.states)
        self.slots: dict[int, tuple[int, ...]] = {}
        self.saved: dict[int, tuple[int, ...]] = {}
        self.arrivals = 0
        self.last = Step()

    def add(self, request: Request) -> RequestState:
        """Put a request into the queue."""
        state = state_without_model(request, self.arrivals)
        self.arrivals += 1
        self.scheduler.add(state)
        return state

    def step(self, budget: int, num_speculative_tokens: int = 0) -> list[RequestState]:
        """Compute a step, and check that it reads and writes the right slots.

        Random numbers stand for tokens.

        Args:
            budget: the most prompt tokens.
            num_speculative_tokens: the most draft tokens of a request. Some are right and some are
                wrong.

        Returns:
            The finished requests.

        Raises:
            AssertionError: if a slot holds another text than the request that reads it.
        """
        for request, limit in draft_limits(
            self.scheduler.choose_served(), num_speculative_tokens
        ).items():
            request.draft_tokens[:] = _draft_tokens(request.tokens, limit)
        step = self.last = self.scheduler.schedule(budget)
        assert sum(len(chunk.tokens) for chunk in step.prefill) <= budget
        for source, target in step.copies:
            for place in range(PAGE):
                if source * PAGE + place in self.slots:
                    self.slots[target * PAGE + place] = self.slots[source * PAGE + place]
        for chunk in [*step.prefill, *step.decode]:
            assert chunk.start < chunk.stop
            assert chunk.tokens == chunk.request.token_ids(chunk.start, chunk.stop)
            assert chunk.num_samples in (0, 1 + len(chunk.request.draft_tokens))
        self._compute(step.prefill)
        self._compute(step.decode)
        assert all(chunk.stop <= chunk.request.num_prompt_tokens for chunk in step.prefill)
        assert all(chunk.start >= chunk.request.num_prompt_tokens for chunk in step.decode)
        ended = []
        for chunk in [*step.prefill, *step.decode]:
            request = chunk.request
            assert chunk.start == request.num_computed_tokens
            if not chunk.num_samples:
                self.scheduler.update(request, chunk.stop)
                continue
            for expected in [*request.draft_tokens, None]:
                request.tokens.append(_next(request.tokens))
                if request.tokens[-1] != expected or not request.remaining:
                    break
            request.draft_tokens.clear()
            self.scheduler.update(request, len(request.tokens) - 1)
            if not request.remaining:
                self.scheduler.remove(request)
                ended.append(request)
        return ended

    def _compute(self, chunks: Sequence[Chunk]) -> None:
        """Compute the chunks of a pass: load all states, write all slots, and read the pages."""
        writers = [(slot, chunk) for chunk in chunks for slot in chunk.saves.values()]
        assert len({slot for slot, _ in writers}) == len(writers), "a slot is saved twice"
        for chunk in chunks:
            request = chunk.request
            assert not any(slot == chunk.load and by is not chunk for slot, by in writers)
            if self.states is not None:
                before = () if chunk.load == NO_STATE else self.saved[chunk.load]
                assert before == self._text(request, chunk.start), "a state of another text"
                assert all(chunk.start < length <= chunk.stop for length in chunk.saves)
        registered = set(self.block_manager.registered().values())
        for chunk in chunks:
            request = chunk.request
            for length, slot in chunk.saves.items():
                self.saved[slot] = self._text(request, length)
            for at in range(chunk.start, chunk.stop):
                page = request.block_table[at // PAGE]
                assert self.block_manager.holders(page) == 1, "a shared page is written"
                assert page not in registered, "a page of the prefix cache is written"
                self.slots[page * PAGE + at % PAGE] = self._text(request, at + 1)
        for chunk in chunks:
            for at in range(chunk.stop):
                slot = chunk.request.block_table[at // PAGE] * PAGE + at % PAGE
                expected = self._text(chunk.request, at + 1)
                assert self.slots[slot] == expected, "a token of another request"

    def _text(self, request: RequestState, length: int) -> tuple[int, ...]:
        """Return the first tokens of a request; decoded tokens are negative with recurrent state.

        Without recurrent layers, pages of decoded tokens are shared with prompts that contain the
        same tokens.
        """
        tokens = request.token_ids(0, length)
        if self.states is None:
            return tuple(tokens)
        end = request.num_prompt_tokens
        return (*tokens[:end], *(-1 - token for token in tokens[end:]))


def _next(tokens: Sequence[int]) -> int:
    """Return the token that follows others."""
    return random.Random(str(list(tokens))).randrange(3)


def _draft_tokens(tokens: Sequence[int], limit: int) -> list[int]:
    """Return up to `limit` draft tokens, of which about one in four is wrong."""
    draft_tokens: list[int] = []
    for _ in range(limit):
        token = _next([*tokens, *draft_tokens])
        draft_tokens.append((token + (sum(tokens) + len(draft_tokens)) % 4 // 3) % 3)
    return draft_tokens
