"""Options of `bench engine` and `bench serve`, and the load that `bench serve` sends."""

import random
from dataclasses import dataclass, fields
from pathlib import Path

from tinyllm_cli.messages import UsageError

from tinyllm_bench.command_line import option
from tinyllm_bench.shapes import PICO, SHAPES

PEERS = ("mlx-lm", "llama.cpp")  # peers with a server
_BITS = "Bits of random weights. [default: 4]"
_JSON = "Print one JSON document instead of a table."
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
            raise UsageError(
                "--rate: expected 0 (all at once) or more, and below 1,000,000 a second, got "
                f"{self.rate}"
            )

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


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of `bench engine`."""

    shape: str = option(PICO, "NAME", f"{', '.join(SHAPES[:-1])} or {SHAPES[-1]}.")
    bits: int | None = option(None, "N", _BITS)
    dtype: str = option("bfloat16", "float32|float16|bfloat16", "Type of activations.")
    ops: str = option("auto", "NAME", "OpSet.")
    requests: list[int] = option([1, 8, 16], "N", "Requests at a time; may be repeated.", min=1)
    tokens: int = option(64, "N", "Tokens of each answer.", min=1)
    rounds: int = option(3, "N", "Repetitions.", min=1)
    prompt: int = option(0, "N", "Also prefill a prompt of N tokens beside other requests.", min=0)
    as_json: bool = option(False, None, _JSON, "--json")


@dataclass(frozen=True, kw_only=True)
class ServeOptions(LoadShape):
    """Options of `bench serve`. Raise `UsageError` if two options exclude each other."""

    model: str | None = option(None, "ID", "A folder, owner/name on the Hugging Face Hub, or pico.")
    shape: str | None = option(None, "NAME", "Random weights instead: qwen3-0.6b, ...")
    bits: int | None = option(None, "N", _BITS)
    rate: list[float] = option(
        [4.0], "R", "Mean requests per second, 0: all at once; may be repeated."
    )
    peers: bool = option(False, None, "Also measure mlx_lm.server and llama.cpp, if installed.")
    peer: list[str] = option([], "NAME", "Only this peer, mlx-lm or llama.cpp; may be repeated.")
    gguf: Path | None = option(None, "FILE", "The same model for llama.cpp.")
    as_json: bool = option(False, None, _JSON, "--json")

    def __post_init__(self) -> None:
        """Check every range, and options that exclude each other."""
        super().__post_init__()
        if set(self.peer) - set(PEERS):
            raise UsageError(f"--peer: expected one of {', '.join(PEERS)}")
        if self.peer and not self.peers:
            raise UsageError("--peer: expected --peers with it, got none: add it")
        if self.shape is None and self.bits is not None:
            raise UsageError("--bits: expected --shape with it: a checkpoint has its own bits")
        if self.shape is not None and (self.model is not None or self.gguf is not None):
            raise UsageError("--shape: makes a model of its own, without --model and --gguf")
        if self.gguf is not None and "llama.cpp" not in self.chosen_peers:
            raise UsageError(
                "--gguf: is for llama.cpp: expected --peers, and no other --peer alone"
            )

    @property
    def chosen_peers(self) -> list[str]:
        """Names of the peers to measure."""
        return (self.peer or list(PEERS)) if self.peers else []

    def loads(self) -> list[Load]:
        """Return one load per rate, each with its own seed, so that its prompts are not cached."""
        shape = {each.name: getattr(self, each.name) for each in fields(LoadShape)}
        return [
            Load(**shape | {"rate": rate, "seed": self.seed + i})
            for i, rate in enumerate(self.rate)
        ]
