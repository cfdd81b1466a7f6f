"""Random schedules, and what each of their requests gets alone: for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tinyllm_qwen import Qwen, SamplingParams, Tokenizer, generate

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.engine import Engine
from tinyllm_engine.handle import Handle
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.request import Request

GREEDY = SamplingParams()
DRAWN = SamplingParams(temperature=1.0, top_p=0.95, seed=3)
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
    """What happened in a schedule, or in several.

    Attributes:
        requests: that came.
        cancelled: of them, those that were taken back.
        tokens: chosen.
        preemptions: how often a request lost its pages.
        prefix_hits: requests that found some of their prompt computed.
        drafted: tokens guessed.
        accepted: guesses that were right.
    """

    requests: int = 0
    cancelled: int = 0
    tokens: int = 0
    preemptions: int = 0
    prefix_hits: int = 0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Both together."""
        names = [each.name for each in fields(self)]
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Oracle:
    """What `tinyllm_qwen.generate` makes of a prompt; each is asked for once."""

    def __init__(self, model: Qwen, tokenizer: Tokenizer) -> None:
        """Know nothing yet."""
        self._model = model
        self._tokenizer = tokenizer
        self._known: dict[tuple[tuple[int, ...], SamplingParams], list[int]] = {}

    def __call__(self, prompt: Sequence[int], count: int, sampling: SamplingParams) -> list[int]:
        """The first tokens of the answer. They do not depend on how many there are to be."""
        key = (tuple(prompt), sampling)
        known = self._known.get(key, [])
        if len(known) < count and not (known and known[-1] in self._tokenizer.eos_token_ids):
            most = max(count, _LONGEST_ANSWER)
            pieces = generate(
                self._model, self._tokenizer, prompt, max_tokens=most, sampling=sampling
            )
            known = self._known[key] = [piece.token for piece in pieces]
        return known[:count]


def sample_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Short conversations; the last ones begin alike and are longer than several pages."""
    short = [
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": question}]))
        for question in _QUESTIONS
    ]
    long = [token for prompt in short for token in prompt]
    return [*short, long, [*long, *short[0]], [*long, *short[1]], long[:64], short[0][:1]]


def pages_of(model: Qwen, pages: int, page_size: int, draft: Qwen | None = None) -> int:
    """Bytes for so many pages."""
    settings = EngineSettings(page_size, memory_bytes=1 << 24)
    return pages * PagePool(model, settings, draft).page_bytes


def run_schedule(
    model: Qwen,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    oracle: Oracle,
    seed: int,
    *,
    draft: Qwen | None = None,
    requests: int = 14,
) -> Tally:
    """Let requests come, be preempted and be taken back at random, in an engine set up at random.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        prompts: to choose from.
        oracle: what each of them gets alone.
        seed: of everything that is random.
        draft: a model that guesses.
        requests: how many come.

    Raises:
        AssertionError: if one of them gets another token than alone, or a page is not given back.
    """
    draw = random.Random(seed)
    page_size = draw.choice([3, 8, 16])
    longest = -(-(max(map(len, prompts)) + _LONGEST_ANSWER) // page_size)
    # From hardly enough for one to plenty: preemptions in the first case.
    pages = draw.choice([longest + 1, 2 * longest, 400])
    settings = EngineSettings(
        page_size=page_size,
        memory_bytes=pages_of(model, pages, page_size, draft),
        max_running=draw.choice([2, 5, 32]),
        prefill_tokens=draw.choice([2, 7, 64, 512]),
        step_seconds=1000.0,
        prefix_cache=draw.random() < 0.8,
        speculation=draw.choice([0, 3] if draft is None else [1, 3, 5]),
    )
    engine = Engine(model, tokenizer, settings, draft=draft)
    handles: list[Handle] = []
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
    return Tally(
        requests=len(handles),
        cancelled=sum(handle.finish_reason == "cancelled" for handle in handles),
        tokens=stats.generated_tokens,
        preemptions=stats.preemptions,
        prefix_hits=sum(handle.usage.cached_tokens > 0 for handle in handles),
        drafted=stats.drafted_tokens,
        accepted=stats.accepted_tokens,
    )


def _check(handle: Handle, oracle: Oracle, where: str) -> None:
    """Compare a request's tokens with those that it gets alone, as far as it got."""
    request = handle.request
    actual = handle.sequence.tokens[len(request.prompt) :]
    expected = oracle(request.prompt, handle.max_tokens, request.sampling)
    if handle.finish_reason == "cancelled":
        expected = expected[: len(actual)]
    if actual != expected:
        raise AssertionError(f"{where}, {request}: expected {expected}, got {actual}")
