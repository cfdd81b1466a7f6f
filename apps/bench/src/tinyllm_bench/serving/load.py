"""The requests that a server is measured with."""

import random
from dataclasses import dataclass

from tinyllm_bench.errors import UsageError

# One token each in the vocabularies of Qwen and of pico, or nearly.
_WORDS = ("the", "a", "of", "to", "and", "in", "is", "it", "that", "for", "on", "as", "with", "at")


@dataclass(frozen=True)
class Arrival:
    """A request, and when it comes.

    Attributes:
        seconds: after the first one.
        prompt: its text.
    """

    seconds: float
    prompt: str


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests that come at random times, as independent people's do (a Poisson process).

    Attributes:
        requests: how many.
        rate: how many a second on average; 0 sends all at once.
        concurrency: how many are under way at most; the next one waits with its client.
        prompt_words: words of a prompt, which are about as many tokens.
        shared: the share of a prompt that all prompts begin with.
        answer_tokens: tokens of an answer.
        seed: same seed, same requests at the same times.

    Raises:
        UsageError: a value is out of its range.
    """

    requests: int = 32
    rate: float = 4.0
    concurrency: int = 64
    prompt_words: int = 128
    shared: float = 0.5
    answer_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every range."""
        for option, number in (
            ("--requests", self.requests),
            ("--concurrency", self.concurrency),
            ("--prompt-words", self.prompt_words),
            ("--answer-tokens", self.answer_tokens),
        ):
            if number < 1:
                raise UsageError(f"{option}: expected at least 1, got {number}")
        if not 0 <= self.rate < 1e6:
            raise UsageError(f"--rate: expected 0 (all at once) or more a second, got {self.rate}")
        if not 0 <= self.shared <= 1:
            raise UsageError(f"--shared: expected from 0 to 1, got {self.shared}")

    def arrivals(self) -> list[Arrival]:
        """The requests, in the order in which they come."""
        draw = random.Random(self.seed)
        common = int(self.prompt_words * self.shared)
        beginning = draw.choices(_WORDS, k=common)
        arrivals, now = [], 0.0
        for _ in range(self.requests):
            rest = draw.choices(_WORDS, k=self.prompt_words - common)
            arrivals.append(Arrival(now, " ".join([*beginning, *rest])))
            now += draw.expovariate(self.rate) if self.rate else 0.0
        return arrivals
