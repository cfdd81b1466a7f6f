"""Random schedules for tests, compared with `tinyllm_qwen.generate`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tinyllm_qwen import Qwen, SamplingParams, Tokenizer, generate
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.engine import Engine
from tinyllm_engine.kv.memory_plan import plan_memory
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.output import SampledToken
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.runner import Runner, Scores
from tinyllm_engine.schedule.step import Chunk
from tinyllm_engine.testing.known_answers import KnownAnswers

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
        num_draft_tokens: number of verified draft tokens.
        accepted: number of accepted draft tokens.
        failures: number of steps that the test made fail.
        restarts: number of engines that loaded the prefix cache of another engine.
        snapshot_hits: number of admissions that continued a snapshot of recurrent states.
        snapshot_evictions: number of snapshots that were evicted.
    """

    requests: int = 0
    cancelled: int = 0
    tokens: int = 0
    preemptions: int = 0
    prefix_hits: int = 0
    num_draft_tokens: int = 0
    accepted: int = 0
    failures: int = 0
    restarts: int = 0
    snapshot_hits: int = 0
    snapshot_evictions: int = 0

    def __add__(self, other: "Tally") -> "Tally":
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

    def prefill(self, chunks: Sequence[Chunk]) -> Scores | None:
        scores = super().prefill(chunks)
        self._perhaps_fail(chunks)
        return scores

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


def sample_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Return conversations as token ids. Four of them share a prefix of several pages."""
    short = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}])
        for question in _QUESTIONS
    ]
    long = [token for prompt in short for token in prompt]
    return [*short, long, [*long, *short[0]], [*long, *short[1]], long[:64], short[0][:1]]


def pages_of(
    model: LanguageModel, num_pages: int, page_size: int, draft_model: LanguageModel | None = None
) -> int:
    """Return the size of `num_pages` pages of a model and a draft model, in bytes."""
    settings = EngineSettings(page_size, kv_cache_memory_bytes=1 << 24)
    return num_pages * PagePool(model, settings, draft_model).page_bytes


def run_schedule(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    oracle: Oracle,
    seed: int,
    *,
    draft_model: LanguageModel | None = None,
    requests: int = 14,
    failures: float = 0.0,
    tenants: int = 1,
    prefix_cache_path: Path | None = None,
) -> Tally:
    """Add, preempt and cancel requests at random, in an engine with random settings.

    If the model has recurrent layers, some requests are added four times at once (forks of one
    text), and the number of snapshots is random too. `KnownAnswers` proposes draft tokens for such
    a model, unless it has a draft head.

    Args:
        model: the model.
        tokenizer: the model's tokenizer.
        prompts: the prompts to choose from.
        oracle: the expected tokens of each request.
        seed: the seed of all random choices.
        draft_model: a draft model.
        requests: the number of requests, forks not counted.
        failures: the probability that a pass fails.
        tenants: the number of tenants, with different weights and prefix caches. The times of the
            machine then change the schedule, which no seed repeats.
        prefix_cache_path: a file. After half of the requests, the engine saves its prefix cache
            there, and a new engine loads it. None for one engine.

    Returns:
        The counts of the schedule.

    Raises:
        AssertionError: if a request gets another token than expected, or if a page, a slot or a
            snapshot is not freed.
    """
    draw, fork_draw = random.Random(seed), random.Random(f"forks {seed}")
    has_head = isinstance(model, Qwen) and model.draft_head is not None
    page_size = draw.choice([3, 8, 16])
    longest = -(-(max(map(len, prompts)) + _LONGEST_ANSWER) // page_size)
    # From little more than the longest request needs, which causes preemptions, to enough for all.
    num_pages = draw.choice([longest + 1, 2 * longest, 400])
    settings = EngineSettings(
        page_size=page_size,
        kv_cache_memory_bytes=pages_of(model, num_pages, page_size, draft_model),
        max_num_seqs=draw.choice([2, 5, 32]),
        max_num_batched_tokens=draw.choice([2, 7, 64, 512]),
        step_seconds=1000.0,  # the speed of the machine must not change the schedule
        enable_prefix_caching=draw.random() < 0.8,
        num_speculative_tokens=draw.choice(
            [1, 3, 5] if draft_model is not None or has_head else [0, 3]
        ),
    )
    if model.state_bytes():
        settings = _with_states(model, settings, fork_draw.choice([1, 3, 12, 60]))

    def make(settings: EngineSettings) -> Engine:
        engine = Engine(model, tokenizer, settings, draft_model=draft_model)
        if failures:
            engine._runner = _UnreliableRunner(engine._runner, random.Random(seed), failures)
        if (
            model.state_bytes()
            and settings.num_speculative_tokens
            and draft_model is None
            and not has_head
        ):
            engine._drafter = KnownAnswers(oracle, fork_draw)
        return engine

    engine, tally = make(settings), Tally()
    added: list[RequestState] = []
    for number in range(requests):
        if prefix_cache_path is not None and number == requests // 2:
            tally += _end(engine, seed, failures) + Tally(restarts=1)
            engine.save_prefixes(prefix_cache_path)
            if settings.enable_prefix_caching:
                settings = replace(settings, prefix_cache_path=prefix_cache_path)
            engine = make(settings)
        sampling = draw.choice([GREEDY, GREEDY, DRAWN, PENALIZED])
        count = draw.choice([1, 2, 9, _LONGEST_ANSWER])
        priority = draw.randrange(-1, 2)
        tenant = len(added) % tenants
        request = Request(
            draw.choice(prompts),
            count,
            sampling,
            priority=priority,
            tenant=f"tenant {tenant}",
            weight=1.0 + tenant,
            cache_salt=str(tenant) if tenant else "",
        )
        copies = fork_draw.choice([1, 1, 4]) if model.state_bytes() else 1
        added += [engine.add(request) for _ in range(copies)]
        for _ in range(draw.randrange(6)):
            engine.step()
        if draw.random() < 0.2:
            engine.cancel(draw.choice(added))
    tally += _end(engine, seed, failures)
    for state in added:
        _check(state, oracle, f"seed {seed}")
    return tally + Tally(
        requests=len(added),
        cancelled=sum(state.finish_reason == "cancelled" for state in added),
        prefix_hits=sum(state.usage.cached_tokens > 0 for state in added),
    )


def _with_states(model: LanguageModel, settings: EngineSettings, count: int) -> EngineSettings:
    """Return settings with memory for as many pages, and for `count` snapshots in addition."""
    assert settings.kv_cache_memory_bytes is not None
    page_bytes, context = model.page_bytes(settings.page_size), model.config.context_length
    pages, snapshots = settings.kv_cache_memory_bytes, count * model.state_bytes()
    memory = pages + snapshots + (1 + settings.num_speculative_tokens) * model.state_bytes()
    while True:
        rest = replace(settings, kv_cache_memory_bytes=memory, snapshot_memory_bytes=0)
        states = plan_memory(rest, page_bytes, model.state_bytes(), context).num_states
        if memory - states * model.state_bytes() - snapshots >= pages:
            return replace(settings, kv_cache_memory_bytes=memory, snapshot_memory_bytes=snapshots)
        memory += model.state_bytes()


def _end(engine: Engine, seed: int, failures: float) -> Tally:
    """Compute all requests of an engine, check that nothing is left behind, and count events."""
    while engine.has_work:
        engine.step()
    stats = engine.stats
    used = (stats.running, stats.waiting, stats.pages_used, stats.states_used, stats.snapshots_used)
    if any(used):
        raise AssertionError(f"seed {seed}: expected nothing left behind, got {stats}")
    if stats.failed_steps and not failures:
        raise AssertionError(f"seed {seed}: expected no failed step, got {stats.failed_steps}")
    return Tally(
        tokens=stats.generated_tokens,
        preemptions=stats.preemptions,
        num_draft_tokens=stats.draft_tokens,
        accepted=stats.accepted_tokens,
        failures=stats.failed_steps,
        snapshot_hits=stats.snapshot_hits,
        snapshot_evictions=stats.snapshot_evictions,
    )


def _check(state: RequestState, oracle: Oracle, where: str) -> None:
    """Compare the tokens of a request with the oracle. A cancelled request may have fewer."""
    request = state.request
    actual = state.tokens[state.num_prompt_tokens :]
    expected = oracle(state.prompt, state.max_tokens, request.sampling)
    if state.finish_reason in ("cancelled", "error"):
        expected = expected[: len(actual)]
    if actual != expected:
        raise AssertionError(f"{where}, {request}: expected {expected}, got {actual}")
