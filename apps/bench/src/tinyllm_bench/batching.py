"""Many requests in one engine, without a server around it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tinyllm_engine import Engine, Handle, Request

_SHORT_PROMPT = 32


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


def measure_batch(engine: Engine, requests: int, tokens: int, seed: int = 0) -> Batch:
    """Let requests decode so many tokens each, and time the steps in which all of them do."""
    prompts = _prompts(engine, requests, _SHORT_PROMPT, seed)
    handles = [_add(engine, prompt, tokens + 2) for prompt in prompts]
    while any(handle.sequence.generated == 0 for handle in handles):
        engine.step()
    gaps, made = [], 0
    started = time.perf_counter()
    while all(handle.finish_reason is None for handle in handles):
        before = time.perf_counter()
        made += len(engine.step())
        gaps.append(time.perf_counter() - before)
    seconds = time.perf_counter() - started
    while engine.has_work:
        engine.step()
    return Batch(requests, made / seconds, tuple(gaps))


def measure_company(engine: Engine, prompt_tokens: int, every: float, seed: int = 0) -> Company:
    """Prefill a long prompt while one request decodes and a short one comes every so often."""
    (long,) = _prompts(engine, 1, prompt_tokens, seed)
    shorts = iter(_prompts(engine, 1000, _SHORT_PROMPT, seed + 1))
    decoding = _add(engine, next(shorts), engine.model.config.context_length)
    while decoding.sequence.generated == 0:
        engine.step()
    started = latest = time.perf_counter()
    handle = _add(engine, long, 1)
    gaps: list[float] = []
    came: dict[Handle, float] = {}
    first_tokens: list[float] = []
    while handle.finish_reason is None:
        if time.perf_counter() - started > every * (len(came) + 1):
            came[_add(engine, next(shorts), 1)] = time.perf_counter()
        owners = [owner for owner, _ in engine.step()]
        now = time.perf_counter()
        first_tokens += [now - came[owner] for owner in owners if owner in came]
        if decoding in owners:
            gaps.append(now - latest)
            latest = now
    seconds = time.perf_counter() - started
    engine.cancel(decoding)
    while engine.has_work:
        engine.step()
    return Company(prompt_tokens, seconds, tuple(gaps), tuple(first_tokens))


def _prompts(engine: Engine, count: int, length: int, seed: int) -> list[list[int]]:
    """Random tokens; no two prompts begin alike."""
    vocab_size = engine.model.config.vocab_size
    drawn: list[list[int]] = (
        np.random.default_rng(seed).integers(0, vocab_size, (count, length)).tolist()
    )
    return drawn


def _add(engine: Engine, prompt: Sequence[int], tokens: int) -> Handle:
    room = engine.model.config.context_length - len(prompt)
    return engine.add(Request(prompt, min(tokens, room), ignore_end=True))
