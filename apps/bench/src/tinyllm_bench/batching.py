"""Many requests in one engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tinyllm_engine import Engine, EngineSettings, Request, RequestState
from tinyllm_ops import OpSet
from tinyllm_qwen import Qwen, load

from tinyllm_bench.prepared_layers import prepare
from tinyllm_bench.subject import Subject

SHORT_PROMPT = 32
"""Tokens of a prompt that is soon computed."""


@dataclass(frozen=True)
class Batch:
    """Requests that decode together.

    Attributes:
        requests: how many.
        tokens_per_second: of all of them.
        gaps: seconds between two steps.
    """

    requests: int
    tokens_per_second: float
    gaps: tuple[float, ...]


@dataclass(frozen=True)
class Company:
    """What a long prompt does to others.

    Attributes:
        prompt_tokens: of the long prompt.
        prompt_seconds: until its first token.
        gaps: seconds between two tokens of a request that decodes meanwhile.
        first_tokens: seconds until the first token of short requests that come meanwhile.
    """

    prompt_tokens: int
    prompt_seconds: float
    gaps: tuple[float, ...]
    first_tokens: tuple[float, ...]


class Batches(Protocol):
    """What answers requests together, measured."""

    def batch(self, requests: int, tokens: int, seed: int = 0) -> Batch:
        """Let requests decode so many tokens each, and time them while all of them do."""

    def company(self, prompt_tokens: int, every: float, seed: int = 0) -> Company:
        """Prefill a long prompt while one request decodes and a short one comes every so often."""


@dataclass(frozen=True)
class EngineBatches:
    """An engine, in this process.

    Attributes:
        engine: what computes.
    """

    engine: Engine

    @classmethod
    def of(cls, subject: Subject, ops: OpSet, max_running: int) -> "EngineBatches":
        """An engine of random weights.

        Args:
            subject: the model.
            ops: what computes.
            max_running: requests at a time.
        """
        _, tokenizer = load("pico")  # its text is looked at by nobody
        weights = dict(subject.weights)
        prepare(ops, weights)
        settings = EngineSettings(max_running=max(max_running, 2), prefix_cache=False)
        return cls(Engine(Qwen(subject.config, weights, ops=ops), tokenizer, settings))

    def batch(self, requests: int, tokens: int, seed: int = 0) -> Batch:
        """As `Batches.batch`, by the steps of the engine."""
        engine = self.engine
        prompts = random_prompts(engine.model.config.vocab_size, requests, SHORT_PROMPT, seed)
        handles = [self._add(prompt, tokens + 2) for prompt in prompts]
        while any(handle.generated == 0 for handle in handles):
            engine.step()
        gaps, made = [], 0
        started = time.perf_counter()
        while all(handle.finish_reason is None for handle in handles):
            before = time.perf_counter()
            made += len(engine.step())
            gaps.append(time.perf_counter() - before)
        seconds = time.perf_counter() - started
        self._finish()
        return Batch(requests, made / seconds, tuple(gaps))

    def company(self, prompt_tokens: int, every: float, seed: int = 0) -> Company:
        """As `Batches.company`, by the steps of the engine."""
        engine, config = self.engine, self.engine.model.config
        (long,) = random_prompts(config.vocab_size, 1, prompt_tokens, seed)
        shorts = iter(random_prompts(config.vocab_size, 1000, SHORT_PROMPT, seed + 1))
        decoding = self._add(next(shorts), config.context_length)
        while decoding.generated == 0:
            engine.step()
        started = latest = time.perf_counter()
        handle = self._add(long, 1)
        gaps: list[float] = []
        came: dict[RequestState, float] = {}
        first_tokens: list[float] = []
        while handle.finish_reason is None:
            if time.perf_counter() - started > every * (len(came) + 1):
                came[self._add(next(shorts), 1)] = time.perf_counter()
            owners = [owner for owner, _ in engine.step()]
            now = time.perf_counter()
            first_tokens += [now - came[owner] for owner in owners if owner in came]
            if decoding in owners:
                gaps.append(now - latest)
                latest = now
        seconds = time.perf_counter() - started
        engine.cancel(decoding)
        self._finish()
        return Company(prompt_tokens, seconds, tuple(gaps), tuple(first_tokens))

    def _add(self, prompt: Sequence[int], tokens: int) -> RequestState:
        room = self.engine.model.config.context_length - len(prompt)
        return self.engine.add(Request(prompt, min(tokens, room), ignore_end=True))

    def _finish(self) -> None:
        while self.engine.has_work:
            self.engine.step()


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Random tokens; no two prompts begin alike."""
    drawn: list[list[int]] = (
        np.random.default_rng(seed).integers(0, vocab_size, (count, length)).tolist()
    )
    return drawn
