"""Load for a server: requests at random times."""

import random
from dataclasses import dataclass

from tinyllm_bench.command_line import option
from tinyllm_bench.errors import UsageError

# About one token each in the vocabularies of Qwen and of pico.
_WORDS = ("the", "a", "of", "to", "and", "in", "is", "it", "that", "for", "on", "as", "with", "at")


@dataclass(frozen=True)
class Arrival:
    """A request of a load."""

    seconds: float  # time after the first request
    prompt: str  # text of the prompt


@dataclass(frozen=True, kw_only=True)
class LoadShape:
    """Options of a load, without its rate. Raise `UsageError` if a value is out of its range."""

    requests: int = option(32, "N", "Number of requests.")
    concurrency: int = option(64, "N", "Most requests in flight.")
    prompt_words: int = option(128, "N", "Words of a prompt, about as many tokens.")
    shared: float = option(0.5, "S", "Share of a prompt that is a prefix of all prompts.")
    answer_tokens: int = option(64, "N", "Tokens of an answer.")
    seed: int = option(0, "N", "Seed of prompts and times.")

    def __post_init__(self) -> None:
        """Check every range."""
        for name in ("requests", "concurrency", "prompt_words", "answer_tokens"):
            if getattr(self, name) < 1:
                dashed = name.replace("_", "-")
                raise UsageError(f"--{dashed}: expected at least 1, got {getattr(self, name)}")
        if not 0 <= self.shared <= 1:
            raise UsageError(f"--shared: expected from 0 to 1, got {self.shared}")


@dataclass(frozen=True, kw_only=True)
class Load(LoadShape):
    """Requests at the times of a Poisson process, as independent clients send them."""

    rate: float = 4.0  # mean requests per second; 0 sends all at once

    def __post_init__(self) -> None:
        """Check every range."""
        super().__post_init__()
        if not 0 <= self.rate < 1e6:
            raise UsageError(f"--rate: expected 0 (all at once) or more a second, got {self.rate}")

    def arrivals(self) -> list[Arrival]:
        """Return the requests in the order of their times."""
        draw = random.Random(self.seed)
        common = int(self.prompt_words * self.shared)
        prefix = draw.choices(_WORDS, k=common)
        arrivals, now = [], 0.0
        for _ in range(self.requests):
            rest = draw.choices(_WORDS, k=self.prompt_words - common)
            arrivals.append(Arrival(now, " ".join([*prefix, *rest])))
            now += draw.expovariate(self.rate) if self.rate else 0.0
        return arrivals
