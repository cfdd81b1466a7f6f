"""Random schedules for tests, whose tokens are compared with `tinyllm_qwen.generate`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tinyllm_qwen import Sampler, SamplingParams, Tokenizer, generate
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.text.output import FinishReason, OutputProcessor

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.engine import Engine
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.output import SampledToken
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.runner import Runner, Scores
from tinyllm_engine.schedule.step import Chunk

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

    def prefill(self, chunks: Sequence[Chunk]) -> None:
        super().prefill(chunks)
        self._perhaps_fail(chunks)

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
        handles.append(
            engine.add(Request(draw.choice(prompts), count, sampling, priority=priority))
        )
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
