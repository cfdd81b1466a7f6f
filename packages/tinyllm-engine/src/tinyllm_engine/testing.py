"""Schedules for tests: random ones, compared with `tinyllm_qwen.generate`, and of no model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tinyllm_qwen import Sampler, SamplingParams, Tokenizer, generate
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.text.output import FinishReason, OutputProcessor

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.engine import Engine
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.output import SampledToken
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.runner import Runner, Scores
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.schedule.step import Chunk, Step

GREEDY = SamplingParams()
# At temperature 1 nearly every draw of pico is the greedy token, which hides wrong random keys.
DRAWN = SamplingParams(temperature=3.0, top_p=0.95, seed=3)
PENALIZED = SamplingParams(temperature=0.8, top_k=40, repetition_penalty=1.2, seed=4)

_QUESTIONS = (
    "what does rmsnorm do?",
    "what is rope?",
    "hello",
    "why is decoding slow on a cpu?",
    "explain the kv cache to me, please, and say why it is there at all",
    "x",
)
_LONGEST_ANSWER = 24

PAGE = 4
"""The number of tokens in a page of `SchedulerMemory`."""


@dataclass(frozen=True)
class Tally:
    """Counts of the events in one or several schedules.

    Attributes:
        requests: number of added requests.
        cancelled: number of cancelled requests.
        tokens: number of generated tokens.
        preemptions: number of preemptions.
        prefix_hits: number of requests with a prefix in the prefix cache.
        drafted: number of verified draft tokens.
        accepted: number of accepted draft tokens.
        failures: number of steps that the test made fail.
    """

    requests: int = 0
    cancelled: int = 0
    tokens: int = 0
    preemptions: int = 0
    prefix_hits: int = 0
    drafted: int = 0
    accepted: int = 0
    failures: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Return the sum of each count."""
        names = [each.name for each in fields(self)]
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Oracle:
    """The answers of `tinyllm_qwen.generate`. Each answer is computed once."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        """Make an oracle without computed answers."""
        self._model = model
        self._tokenizer = tokenizer
        self._known: dict[tuple[tuple[int, ...], SamplingParams], list[int]] = {}

    def __call__(self, prompt: Sequence[int], count: int, sampling: SamplingParams) -> list[int]:
        """Return the first `count` tokens of the answer to a prompt."""
        key = (tuple(prompt), sampling)
        known = self._known.get(key, [])
        if len(known) < count and not (known and known[-1] in self._tokenizer.eos_token_ids):
            most = max(count, _LONGEST_ANSWER)
            pieces = generate(
                self._model, self._tokenizer, prompt, max_tokens=most, sampling=sampling
            )
            known = self._known[key] = [piece.token for piece in pieces]
        return known[:count]


class _UnreliableRunner(Runner):
    """A runner whose passes fail at random, before or after they have written to the pages."""

    def __init__(self, runner: Runner, draw: random.Random, rate: float) -> None:
        vars(self).update(vars(runner))
        self._draw = draw
        self._rate = rate

    def prefill(self, chunks: Sequence[Chunk]) -> dict[RequestState, list[float]]:
        vectors = super().prefill(chunks)
        self._perhaps_fail(chunks)
        return vectors

    def decode(self, chunks: Sequence[Chunk]) -> Scores | None:
        self._perhaps_fail(chunks)
        return super().decode(chunks)

    def sample(self, chunks: Sequence[Chunk], scores: Scores | None) -> list[list[SampledToken]]:
        sampled = super().sample(chunks, scores)
        self._perhaps_fail(chunks)
        return sampled

    def _perhaps_fail(self, chunks: Sequence[Chunk]) -> None:
        if chunks and self._draw.random() < self._rate:
            raise RuntimeError("a failure made by the test")


class _NoText(OutputProcessor):
    """An output processor without a tokenizer: all text is empty, and no token ends the text."""

    def __init__(self) -> None:
        """Make the processor."""

    def push(self, token: int, *, ended: bool) -> tuple[str, FinishReason | None]:
        return "", "length" if ended else None


def state_without_model(request: Request, arrival: int = 0) -> RequestState:
    """Return the state of a request for tests of policy, without a model and a tokenizer."""
    sampler = Sampler(request.sampling, vocab_size=1)
    return RequestState(request, arrival, request.max_tokens, sampler, _NoText())


class SchedulerMemory:
    """A scheduler without a model, and a memory that shows what each slot of a page holds.

    A slot holds all tokens of its text up to the token that was written to it.

    Attributes:
        pages: the allocation of pages.
        scheduler: the scheduler.
        slots: the tokens by slot.
        arrivals: the number of requests so far.
        last: the latest step.
    """

    def __init__(self, pages: int, max_running: int = 4) -> None:
        """Make a scheduler with `pages` empty pages of `PAGE` tokens."""
        self.pages = BlockManager(pages, PAGE)
        self.scheduler = Scheduler(self.pages, max_running)
        self.slots: dict[int, tuple[int, ...]] = {}
        self.arrivals = 0
        self.last = Step()

    def add(self, request: Request) -> RequestState:
        """Put a request into the queue."""
        state = state_without_model(request, self.arrivals)
        self.arrivals += 1
        self.scheduler.add(state)
        return state

    def step(self, budget: int) -> list[RequestState]:
        """Compute a step, and check that it reads and writes the right slots.

        Random numbers stand for tokens.

        Args:
            budget: the most prompt tokens.

        Returns:
            The finished requests.

        Raises:
            AssertionError: if a slot holds another text than the request that reads it.
        """
        step = self.last = self.scheduler.schedule(budget)
        assert sum(len(chunk.tokens) for chunk in step.prefill) <= budget
        for source, target in step.copies:
            for place in range(PAGE):
                if source * PAGE + place in self.slots:
                    self.slots[target * PAGE + place] = self.slots[source * PAGE + place]
        for chunk in [*step.prefill, *step.decode]:
            assert chunk.start < chunk.stop
            assert chunk.tokens == chunk.request.tokens[chunk.start : chunk.stop]
        for chunk in step.prefill:
            assert chunk.stop <= chunk.request.prefill_end
            self._write(chunk.request, chunk.start, chunk.stop)
            self.scheduler.update(chunk.request, chunk.stop)
        ended = []
        for chunk in step.decode:
            request = chunk.request
            assert chunk.start == request.computed >= request.prefill_end
            self._write(request, chunk.start, chunk.stop)
            self._read(request, chunk.stop)
            self.scheduler.update(request, chunk.stop)
            if chunk.choices:
                request.tokens.append(random.Random(str(request.tokens)).randrange(3))
            if request.generated == request.request.max_tokens:
                self.scheduler.remove(request)
                ended.append(request)
        return ended

    def _write(self, request: RequestState, start: int, stop: int) -> None:
        for at in range(start, stop):
            page = request.pages[at // PAGE]
            assert not self.pages.is_shared(page), "a shared page is written"
            self.slots[page * PAGE + at % PAGE] = tuple(request.tokens[: at + 1])

    def _read(self, request: RequestState, stop: int) -> None:
        for at in range(stop):
            slot = request.pages[at // PAGE] * PAGE + at % PAGE
            assert self.slots[slot] == tuple(request.tokens[: at + 1]), "a token of another request"


def sample_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Return conversations as token ids. Four of them share a prefix of several pages."""
    short = [
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": question}]))
        for question in _QUESTIONS
    ]
    long = [token for prompt in short for token in prompt]
    return [*short, long, [*long, *short[0]], [*long, *short[1]], long[:64], short[0][:1]]


def pages_of(
    model: LanguageModel, pages: int, page_size: int, draft: LanguageModel | None = None
) -> int:
    """Return the size of `pages` pages of a model and a draft model, in bytes."""
    settings = EngineSettings(page_size, memory_bytes=1 << 24)
    return pages * PagePool(model, settings, draft).page_bytes


def run_schedule(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    oracle: Oracle,
    seed: int,
    *,
    draft: LanguageModel | None = None,
    requests: int = 14,
    failures: float = 0.0,
    tenants: int = 1,
) -> Tally:
    """Add, preempt and cancel requests at random, in an engine with random settings.

    Args:
        model: the model.
        tokenizer: the model's tokenizer.
        prompts: the prompts to choose from.
        oracle: the expected tokens of each request.
        seed: the seed of all random choices.
        draft: a draft model.
        requests: the number of requests.
        failures: the probability that a pass fails.
        tenants: the number of tenants, with different weights and prefix caches. The times of the
            machine then change the schedule, which no seed repeats.

    Returns:
        The counts of the schedule.

    Raises:
        AssertionError: if a request gets another token than expected, or a page is not freed.
    """
    draw = random.Random(seed)
    page_size = draw.choice([3, 8, 16])
    longest = -(-(max(map(len, prompts)) + _LONGEST_ANSWER) // page_size)
    # From little more than the longest request needs, which causes preemptions, to enough for all.
    pages = draw.choice([longest + 1, 2 * longest, 400])
    settings = EngineSettings(
        page_size=page_size,
        memory_bytes=pages_of(model, pages, page_size, draft),
        max_running=draw.choice([2, 5, 32]),
        prefill_tokens=draw.choice([2, 7, 64, 512]),
        step_seconds=1000.0,  # the speed of the machine must not change the schedule
        prefix_cache=draw.random() < 0.8,
        speculation=draw.choice([0, 3] if draft is None else [1, 3, 5]),
    )
    engine = Engine(model, tokenizer, settings, draft=draft)
    if failures:
        engine._runner = _UnreliableRunner(engine._runner, random.Random(seed), failures)
    handles: list[RequestState] = []
    for _ in range(requests):
        sampling = draw.choice([GREEDY, GREEDY, DRAWN, PENALIZED])
        count = draw.choice([1, 2, 9, _LONGEST_ANSWER])
        priority = draw.randrange(-1, 2)
        tenant = len(handles) % tenants
        request = Request(
            draw.choice(prompts),
            count,
            sampling,
            priority=priority,
            tenant=f"tenant {tenant}",
            weight=1.0 + tenant,
            cache_salt=str(tenant) if tenant else "",
        )
        handles.append(engine.add(request))
        for _ in range(draw.randrange(6)):
            engine.step()
        if draw.random() < 0.2:
            engine.cancel(draw.choice(handles))
    while engine.has_work:
        engine.step()
    for handle in handles:
        _check(handle, oracle, f"seed {seed}")
    stats = engine.stats
    if stats.pages_used or stats.running or stats.waiting:
        raise AssertionError(f"seed {seed}: expected nothing left behind, got {stats}")
    if stats.failed_steps and not failures:
        raise AssertionError(f"seed {seed}: expected no failed step, got {stats.failed_steps}")
    return Tally(
        requests=len(handles),
        cancelled=sum(handle.finish_reason == "cancelled" for handle in handles),
        tokens=stats.generated_tokens,
        preemptions=stats.preemptions,
        prefix_hits=sum(handle.usage.cached_tokens > 0 for handle in handles),
        drafted=stats.draft_tokens,
        accepted=stats.accepted_tokens,
        failures=stats.failed_steps,
    )


def _check(handle: RequestState, oracle: Oracle, where: str) -> None:
    """Compare the tokens of a request with the oracle. A cancelled request may have fewer."""
    request = handle.request
    actual = handle.tokens[len(request.prompt) :]
    expected = oracle(request.prompt, handle.max_tokens, request.sampling)
    if handle.finish_reason in ("cancelled", "error"):
        expected = expected[: len(actual)]
    if actual != expected:
        raise AssertionError(f"{where}, {request}: expected {expected}, got {actual}")
